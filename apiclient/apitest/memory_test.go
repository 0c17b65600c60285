package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
)

type doc = map[string]any

// ear is a notify callback that keeps what it hears, and can be made deaf.
type ear struct {
	mu    sync.Mutex
	heard []string
	deaf  bool
	tries int
}

func (e *ear) notify(_ context.Context, kind, name, reason string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tries++
	if e.deaf {
		return errors.New("broker is down")
	}
	e.heard = append(e.heard, kind+"/"+name+" "+reason)
	return nil
}

func (e *ear) setDeaf(deaf bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deaf = deaf
}

func (e *ear) drain() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.heard = nil }()
	return e.heard
}

func TestMemoryConformance(t *testing.T) {
	apitest.Conformance(t, func(t *testing.T) apitest.Server {
		var e ear
		m := apitest.NewMemory(e.notify)
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan error)
		go func() { stopped <- m.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-stopped; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		return apitest.Server{URL: "http://api", HTTP: m.Client(), Notifications: func() []string {
			if err := m.Flush(ctx); err != nil || m.Dirty() != 0 {
				t.Fatalf("Flush: %v, %d left", err, m.Dirty())
			}
			return e.drain()
		}}
	})
}

// bubble runs a scenario in virtual time, with a relay.
func bubble(t *testing.T, scenario func(t *testing.T, m *apitest.Memory, e *ear, widgets *apiclient.Client[doc, doc])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var e ear
		m := apitest.NewMemory(e.notify)
		go m.Run(t.Context())
		widgets, err := apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: m.Client()}, "widgets")
		if err != nil {
			t.Fatal(err)
		}
		scenario(t, m, &e, widgets)
	})
}

func TestWritesWakeTheRelay(t *testing.T) {
	bubble(t, func(t *testing.T, m *apitest.Memory, e *ear, widgets *apiclient.Client[doc, doc]) {
		start := time.Now()
		must(t)(widgets.Create(t.Context(), "blue", doc{}))
		synctest.Wait()
		if got := e.drain(); !slices.Equal(got, []string{"widgets/blue created"}) || m.Dirty() != 0 || time.Since(start) != 0 {
			t.Fatalf("heard %q after %v, %d left", got, time.Since(start), m.Dirty())
		}
	})
}

func TestOutageOfTheBrokerLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, m *apitest.Memory, e *ear, widgets *apiclient.Client[doc, doc]) {
		e.setDeaf(true)
		must(t)(widgets.Create(t.Context(), "changed", doc{}))
		must(t)(widgets.Create(t.Context(), "gone", doc{}))
		time.Sleep(time.Minute)
		must(t)(widgets.Put(t.Context(), "changed", doc{"size": 1}))
		if _, err := widgets.Delete(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if m.Dirty() != 2 || e.tries < 2*3600/5 || e.tries > 2*3600*2/5+100 {
			t.Fatalf("%d dirty after %d tries in an hour, want 2 and a try of each in 2.5 to 5 s", m.Dirty(), e.tries)
		}
		e.setDeaf(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := e.drain(); m.Dirty() != 0 || len(got) != 2 || !slices.Contains(got, "widgets/changed changed") || !slices.Contains(got, "widgets/gone deleted") {
			t.Fatalf("heard %q, %d left", got, m.Dirty())
		}
	})
}

func TestDeletedInAnOutageAndMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T, m *apitest.Memory, e *ear, widgets *apiclient.Client[doc, doc]) {
		e.setDeaf(true)
		first := must(t)(widgets.Create(t.Context(), "blue", doc{}))
		if _, err := widgets.Delete(t.Context(), "blue"); err != nil {
			t.Fatal(err)
		}
		second := must(t)(widgets.Create(t.Context(), "blue", doc{}))
		if second.UID == first.UID || second.Revision <= first.Revision {
			t.Fatalf("made anew as %+v over %+v", second, first)
		}
		e.setDeaf(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := e.drain(); !slices.Equal(got, []string{"widgets/blue created"}) {
			t.Fatalf("heard %q", got)
		}
		must(t)(widgets.Get(t.Context(), "blue"))
	})
}

// TestChangeDuringANotificationIsNotifiedToo is the case that a relay which marks too early or too much loses.
func TestChangeDuringANotificationIsNotifiedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		var widgets *apiclient.Client[doc, doc]
		m := apitest.NewMemory(func(ctx context.Context, kind, name, reason string) error {
			heard = append(heard, reason)
			if reason == "created" {
				must(t)(widgets.Put(ctx, name, doc{"size": 2}))
				return nil
			}
			if len(heard) < 4 {
				return fmt.Errorf("try %d", len(heard))
			}
			return nil
		})
		widgets, _ = apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: m.Client()}, "widgets")
		go m.Run(t.Context())
		must(t)(widgets.Create(t.Context(), "blue", doc{}))
		time.Sleep(time.Second)
		synctest.Wait()
		if want := []string{"created", "changed", "changed", "changed"}; !slices.Equal(heard, want) || m.Dirty() != 0 {
			t.Fatalf("heard %q, want %q, %d left", heard, want, m.Dirty())
		}
	})
}

// TestOneBadObjectDelaysNoOther: P4 for the relay.
func TestOneBadObjectDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		m := apitest.NewMemory(func(_ context.Context, _, name, _ string) error {
			if name == "bad" {
				return errors.New("no such stream")
			}
			heard = append(heard, name)
			return nil
		})
		widgets, _ := apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: m.Client()}, "widgets")
		go m.Run(t.Context())
		must(t)(widgets.Create(t.Context(), "bad", doc{}))
		time.Sleep(time.Minute)
		must(t)(widgets.Create(t.Context(), "good", doc{}))
		synctest.Wait()
		if !slices.Equal(heard, []string{"good"}) || m.Dirty() != 1 {
			t.Fatalf("heard %q, %d left", heard, m.Dirty())
		}
	})
}

func TestFlushReportsWhatFailed(t *testing.T) {
	e := &ear{deaf: true}
	m := apitest.NewMemory(e.notify)
	widgets, _ := apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: m.Client()}, "widgets")
	must(t)(widgets.Create(t.Context(), "blue", doc{}))
	if err := m.Flush(t.Context()); err == nil || err.Error() != "notify widgets/blue created: broker is down" {
		t.Fatalf("Flush: %v", err)
	}
	e.setDeaf(false)
	if err := m.Flush(t.Context()); err != nil || m.Dirty() != 0 {
		t.Fatalf("Flush: %v, %d left", err, m.Dirty())
	}
}

func TestClientHonoursTheContext(t *testing.T) {
	m := apitest.NewMemory(new(ear).notify)
	widgets, _ := apiclient.New[doc, doc](apiclient.Config{URL: "http://api", HTTP: m.Client()}, "widgets")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := widgets.Create(ctx, "blue", doc{})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, apiclient.ErrUnavailable) || m.Dirty() != 0 {
		t.Fatalf("create with a cancelled context: %v, %d dirty", err, m.Dirty())
	}
}

func must(t *testing.T) func(*apiclient.Object[doc, doc], error) *apiclient.Object[doc, doc] {
	return func(o *apiclient.Object[doc, doc], err error) *apiclient.Object[doc, doc] {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
}
