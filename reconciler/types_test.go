package reconciler_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// of makes a controller of objects with spec S and status T.
func of[S, T any]() reconciler.Controller {
	return reconciler.For("widgets", func(context.Context, *apiclient.Object[S, T]) (reconciler.Result, error) {
		return reconciler.Result{}, nil
	})
}

type (
	tree struct {
		Children []*tree
		At       time.Time
	}
	named   string
	unheard struct{ Wait chan int }
)

func TestNewRefusesTypesThatAreNoJSONObjects(t *testing.T) {
	for name, c := range map[string]struct {
		controller reconciler.Controller
		want       string // empty: it is taken
	}{
		"structs":                 {of[tree, struct{}](), ""},
		"pointers to structs":     {of[*tree, **tree](), ""},
		"maps":                    {of[map[string]any, map[named]int](), ""},
		"maps by addresses":       {of[map[netip.Addr]int, struct{}](), ""},
		"raw JSON":                {of[json.RawMessage, *json.RawMessage](), ""},
		"anything":                {of[any, any](), ""},
		"with methods of its own": {of[apiclient.Raw, json.RawMessage](), ""},
		"a number":                {of[int, struct{}](), "controller of widgets: spec type int is no JSON object"},
		"a list":                  {of[struct{}, []string](), "status type []string is no JSON object"},
		"both":                    {of[int, []string](), "status type []string"},
		"a string":                {of[named, struct{}](), "spec type reconciler_test.named is no JSON object"},
		"a pointer to a list":     {of[*[]tree, struct{}](), "spec type *[]reconciler_test.tree"},
		"maps by numbers":         {of[map[int]string, struct{}](), ""},
		"a map by structs":        {of[map[struct{}]string, struct{}](), "spec type map[struct {}]string is no JSON object"},
		"an address":              {of[netip.Addr, struct{}](), "spec type netip.Addr"},
		"a channel in a struct":   {of[unheard, struct{}](), "has a field that JSON cannot hold: json: unsupported type: chan int"},
		"a function":              {of[func(), struct{}](), "spec type func()"},
		"an interface":            {of[error, struct{}](), "spec type error"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reconciler.New(config(func(*reconciler.Config) {}), c.controller)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
