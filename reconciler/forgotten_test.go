package reconciler

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// resynced are the names of the objects that a search has queued since the last call.
func (s *replica) resynced() (names []string) {
	for _, e := range s.events() {
		if e.Step == StepResynced {
			names = append(names, e.Name)
		}
	}
	return names
}

// reads calls f before the replica reads the object of a name from the API; none is the list.
func (s *joined) reads(name string, f func() (*http.Response, error)) {
	s.meeting.Lock()
	defer s.meeting.Unlock()
	s.meet = func(q *http.Request) (*http.Response, error) {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/jobs"+name) {
			return f()
		}
		return nil, nil
	}
}

// A search queues what is owed a reconcile and nothing stands for, and nothing else.
func TestSearchQueuesWhatNothingStandsFor(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		rival, resign := s.rival()
		defer resign()
		for _, name := range []string{"forgotten", "queued", "held", "gone", "done"} {
			s.put(name)
		}
		o, err := s.jobs.Get(t.Context(), "done")
		require.NoError(t, err)
		_, err = s.jobs.PatchStatus(t.Context(), "done", apiclient.StatusPatch{UID: o.UID, Fence: 1, Reconciliation: &apiclient.Reconciliation{
			ObservedGeneration: o.Generation, State: apiclient.StateReady,
		}})
		require.NoError(t, err)
		require.NoError(t, s.kinds[0].resync(t.Context()))
		require.Empty(t, s.resynced(), "nobody has had the time to look at them")
		time.Sleep(owedFor)
		require.NoError(t, s.Notify(t.Context(), "jobs", "queued", "changed"))
		lk, err := rival.TryLock(t.Context(), s.kinds[0].lockKey("held"))
		require.NoError(t, err)
		defer lk.Unlock()
		s.reads("/gone", func() (*http.Response, error) {
			_, err := s.jobs.Delete(t.Context(), "gone")
			return nil, err
		})
		s.put("fresh")
		require.NoError(t, s.kinds[0].resync(t.Context()))
		require.Equal(t, []string{"forgotten"}, s.resynced())
		require.NoError(t, s.kinds[0].resync(t.Context()))
		require.Empty(t, s.resynced(), "it is queued by now")
	})
}

// A search that cannot ask ends, to begin anew soon; what it cannot know of one object alone it takes for forgotten.
func TestSearchThatCannotAskEnds(t *testing.T) {
	unavailable := func() (*http.Response, error) { return nil, errors.New("no route") }
	answers := func(s *joined, request string) func() (*http.Response, error) {
		return func() (*http.Response, error) {
			s.server.Answer(request, script.Error(500, 10000, "no disk"))
			return nil, nil
		}
	}
	for name, c := range map[string]struct {
		prepare func(s *joined)
		err     string // empty: it goes on
		found   []string
		trouble string // with each find
	}{
		"nothing fails":             {prepare: func(*joined) {}, found: []string{"a", "b"}},
		"the list is not answered":  {prepare: func(s *joined) { s.reads("", unavailable) }, err: "no route"},
		"an object is not answered": {prepare: func(s *joined) { s.reads("/b", unavailable) }, err: "no route", found: []string{"a"}},
		"a lock is not known": {prepare: func(s *joined) {
			s.reads("", answers(s, "$JS.API.STREAM.MSG.GET.KV_"+s.names.LockBucket()))
		}, found: []string{"a", "b"}, trouble: "look at lock"},
		"what is queued is not known": {prepare: func(s *joined) {
			s.reads("", answers(s, "$JS.API.STREAM.MSG.GET."+s.names.WorkStream()))
		}, found: []string{"a", "b"}, trouble: "look for a notification of jobs/"},
		"nothing can be queued":  {prepare: func(s *joined) { s.reads("/a", answers(s, s.names.Later("jobs", "a"))) }, err: "no disk"},
		"the room is not known":  {prepare: func(s *joined) { s.reads("", answers(s, s.consumers("jobs_later"))) }, err: "no disk"},
		"the search has no lock": {prepare: func(s *joined) { s.resign() }, err: "lock"},
		"the search loses it": {prepare: func(s *joined) {
			s.reads("/a", func() (*http.Response, error) {
				s.resign()
				return nil, nil
			})
		}, err: "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				s.put("a")
				s.put("b")
				time.Sleep(owedFor)
				c.prepare(s)
				err := s.kinds[0].resync(t.Context())
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.err)
				}
				var found, troubles []string
				for _, e := range s.events() {
					switch {
					case e.Step == StepResynced:
						found = append(found, e.Name)
					case e.Step == StepTrouble && e.Reason == "resync":
						troubles = append(troubles, e.Name)
						require.ErrorContains(t, e.Err, c.trouble)
					}
				}
				require.Equal(t, c.found, found)
				if c.trouble != "" {
					require.Equal(t, found, troubles)
				} else {
					require.Empty(t, troubles)
				}
			})
		})
	}
}

// A search queues no more than the later lane has room for, and goes on when there is some.
func TestSearchQueuesNoMoreThanThereIsRoomFor(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		const objects = maxLater/2 + 10
		for i := range objects {
			s.put(fmt.Sprint(i))
		}
		time.Sleep(owedFor)
		s.has(maxLater/2, maxLater)
		done := make(chan error, 1)
		go func() { done <- s.kinds[0].resync(t.Context()) }()
		time.Sleep(10 * laterPause)
		synctest.Wait()
		require.Len(t, s.resynced(), maxLater/2)
		require.Empty(t, done)
		s.has(0)
		require.NoError(t, <-done)
		require.Len(t, s.resynced(), objects-maxLater/2)
	})
}
