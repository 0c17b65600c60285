package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// selfWithin bounds one question to the API at the start: one that cannot be reached is said within seconds.
const selfWithin = 5 * time.Second

// misconfigured is an error that no retry mends.
type misconfigured struct{ error }

// introduce asks the API, until it answers, who this controller is to it, and says meanwhile that it does not. It ends the run
// when the controller could never do its work: nothing else would tell, because nobody would ever notify it.
func (r *Runner) introduce(ctx context.Context, end context.CancelCauseFunc) {
	for failures := 1; ctx.Err() == nil; failures++ {
		err := r.askSelf(ctx)
		if err == nil {
			r.unknown.Store(nil)
			if failures > 1 {
				r.cfg.Logger.Info("the API answers", "url", r.apiURL())
			}
			return
		}
		if refused := new(misconfigured); errors.As(err, refused) {
			end(refused.error)
			return
		}
		if ctx.Err() == nil {
			err = fmt.Errorf("the API at %s: %w%s", r.apiURL(), err, advice(err))
			r.unknown.Store(&err)
			r.trouble("ask the API who this controller is", err)
		}
		sleep(ctx, outage.Delay(failures))
	}
}

// askSelf returns nil when the API knows the controller and lets it work, or is too old to be asked.
func (r *Runner) askSelf(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, selfWithin)
	defer cancel()
	api := r.kinds[0].api
	self, err := api.Self(ctx)
	if err == nil {
		return r.checkSelf(self)
	}
	var p *apiclient.Problem
	if !errors.As(err, &p) || p.Status != http.StatusNotFound {
		return err
	}
	// An API that is older than the question knows objects; what is at a wrong address does not.
	if _, objectErr := api.Get(ctx, "self"); objectErr != nil && !errors.Is(objectErr, apiclient.ErrNotFound) {
		return err
	}
	r.cfg.Logger.V(1).Info("the API is too old to say who this controller is to it")
	return nil
}

// checkSelf compares what the API says with what the controller needs.
func (r *Runner) checkSelf(self *apiclient.Self) error {
	if self.Prefix != "" && self.Prefix != r.cfg.Prefix {
		return misconfigured{fmt.Errorf("reconciler: Config.Prefix is %q, and the API at %s notifies under %q: set Config.Prefix to that", r.cfg.Prefix, r.apiURL(), self.Prefix)}
	}
	for _, kind := range r.names() {
		switch {
		case self.Role == "viewer" || self.Role == "editor":
			return misconfigured{fmt.Errorf("reconciler: the API at %s knows this controller as %s, whose role %s may not write the status of %s: "+
				"give Config.Token a token of role controller", r.apiURL(), self.Name, self.Role, kind)}
		case len(self.Kinds) > 0 && !slices.Contains(self.Kinds, kind):
			return misconfigured{fmt.Errorf("reconciler: the API at %s knows this controller as %s, whose role %s is for %v and not for %s: "+
				"give Config.Token a token of role controller for %s", r.apiURL(), self.Name, self.Role, self.Kinds, kind, kind)}
		}
	}
	return nil
}

// apiURL is Config.API without credentials.
func (r *Runner) apiURL() string {
	u, err := url.Parse(r.cfg.API)
	if err != nil {
		return "(no URL)" // which New has refused
	}
	u.User = nil
	return u.String()
}

// advice is the way out of an error of the API, if it is not in its text.
func advice(err error) string {
	switch {
	case errors.Is(err, apiclient.ErrUnauthorized):
		return ": give Config.Token a valid token of role controller"
	case errors.Is(err, apiclient.ErrForbidden):
		return ": give Config.Token a token of role controller for these kinds"
	case errors.Is(err, apiclient.ErrUnavailable):
		return "; waiting"
	}
	return ""
}
