package apitest

import (
	"net/http"
	"slices"
)

var selfRules = []rule{
	{"who asks is told who that is", func(s *suite) {
		self, err := s.widgets.Self(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		equal(s, "has a name", self.Name != "", true)
		equal(s, self.Role+" is a role", slices.Contains([]string{"viewer", "editor", "controller", "admin"}, self.Role), true)
		s.notified()
		resp, data := s.send(http.MethodPost, "/v1/self", http.NoBody)
		equal(s, "status of another method", s.problem(resp, data).Status, http.StatusMethodNotAllowed)
	}},
}
