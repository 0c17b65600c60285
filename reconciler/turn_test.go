package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// steps are those of the object x since the last call.
func (s *replica) steps() (steps []Step) {
	for _, e := range s.events() {
		if e.Name == "x" {
			steps = append(steps, e.Step)
		}
	}
	return steps
}

// A claim that others get ahead of is made again, a few times, each time with what is stored then. After that the object is
// looked at again later.
func TestClaimIsMadeAgainAFewTimes(t *testing.T) {
	for name, c := range map[string]struct {
		ahead func(s *joined, r *run, try int) error // what somebody else does while the claim is on its way
		tries int                                    // 0: as many as there are
		claim bool
	}{
		"the object changes each time": {ahead: func(s *joined, r *run, try int) error {
			_, err := s.jobs.Put(s.t.Context(), "x", job{"size": 1 + try})
			return err
		}},
		"the object changes once": {tries: 2, claim: true, ahead: func(s *joined, r *run, try int) error {
			_, err := s.jobs.Put(s.t.Context(), "x", job{"size": 1 + try})
			return err
		}},
		"a later holder writes once": {tries: 2, claim: true, ahead: func(s *joined, r *run, try int) error {
			o, err := s.jobs.Get(s.t.Context(), "x")
			if err == nil {
				_, err = s.jobs.PatchStatus(s.t.Context(), "x", apiclient.StatusPatch{UID: o.UID, Fence: max(r.fence, o.Reconciliation.Fence) + 5})
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				s.put("x")
				r := s.begin("x")
				r.uncertain.Store(true)
				s.requests()
				done := 0
				s.meet = func(q *http.Request) (*http.Response, error) {
					if q.Method == http.MethodPatch && (c.tries == 0 || done == 0) {
						done++
						return nil, c.ahead(s, r, done)
					}
					return nil, nil
				}
				require.Equal(t, c.claim, r.claim())
				patches, want := 0, c.tries
				for _, method := range s.requests() {
					if method == http.MethodPatch {
						patches++
					}
				}
				if want == 0 {
					want = claimTries
				}
				require.Equal(t, want, patches)
				now, err := s.jobs.Get(t.Context(), "x")
				require.NoError(t, err)
				later, _ := s.queued("x")
				if c.claim {
					require.Equal(t, r.fence, now.Reconciliation.Fence)
					require.Equal(t, now.Revision, r.object.Revision, "it goes on with what is stored")
					require.Equal(t, "jobs", r.object.Kind)
					require.Zero(t, later)
					require.False(t, r.uncertain.Load())
					return
				}
				require.Equal(t, 1, later)
				require.True(t, r.uncertain.Load(), "the next holder claims it")
				require.Equal(t, []Step{StepTrouble, StepRequeued}, s.steps())
			})
		})
	}
}

// While a claim is made again the object may get out of reach: then nothing is decided by what was read before.
func TestClaimEndsWhenTheObjectCannotBeRead(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.put("x")
		r := s.begin("x")
		r.uncertain.Store(true)
		s.meet = func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodGet {
				return nil, errors.New("no route")
			}
			_, err := s.jobs.Put(t.Context(), "x", job{"size": 2})
			return nil, err
		}
		require.False(t, r.claim())
		seen := s.events()
		require.Equal(t, []any{StepTrouble, "read"}, []any{seen[0].Step, seen[0].Reason})
		later, _ := s.queued("x")
		require.Equal(t, 1, later)
	})
}

// An object that goes while it is claimed needs nothing more, whoever finds that.
func TestObjectThatGoesDuringTheClaimIsDone(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.put("x")
		r := s.begin("x")
		r.uncertain.Store(true)
		s.meet = func(q *http.Request) (*http.Response, error) {
			_, err := s.jobs.Delete(t.Context(), "x")
			return nil, err
		}
		require.False(t, r.claim())
		require.Equal(t, []Step{StepSkipped}, s.steps())
		later, now := s.queued("x")
		require.Equal(t, []int{0, 0}, []int{later, now})
		require.False(t, r.uncertain.Load())
	})
}

// A claim says from whom, and tells users of the object only if that one died.
func TestClaimSaysFromWhom(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.put("x")
		rival, resign := s.rival()
		defer resign()
		lk, err := rival.TryLock(t.Context(), s.kinds[0].lockKey("x"))
		require.NoError(t, err)
		lk.Abandon()
		time.Sleep(time.Second)
		r := s.begin("x")
		require.True(t, r.uncertain.Load(), "a write of the one before may still arrive")
		require.True(t, r.claim())
		seen := s.events()
		require.Len(t, seen, 1)
		require.Equal(t, []any{StepClaimed, "b"}, []any{seen[0].Step, seen[0].Reason})
		events, err := s.jobs.Events(t.Context(), "x")
		require.NoError(t, err)
		for _, e := range events {
			require.NotEqual(t, apiclient.HappenedTakenOver, e.Reason, "its holder gave it up")
		}
	})
}

// Fences that went backwards are passed as long as the lock stands. Without the lock there is nothing to pass them for: the object
// is looked at again, or whoever finds the dead lock does that.
func TestFencesArePassedOnlyUnderTheLock(t *testing.T) {
	for name, c := range map[string]struct {
		lose  func(s *joined)
		steps []Step
		later int
		now   int
	}{
		"the lock stands":     {lose: func(*joined) {}, steps: []Step{StepTrouble, StepClaimed}},
		"the lock is deleted": {lose: func(s *joined) { s.free("x") }, steps: []Step{StepTrouble, StepRequeued}, later: 1},
		"the session is over": {lose: func(s *joined) { s.resign() }, steps: []Step{StepLost}},
		"the replica stops":   {lose: func(s *joined) { s.stop(ErrStopping) }, steps: []Step{StepHandedOver}, now: 1},
	} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				o := s.put("x")
				r := s.take("x")
				const ahead = 1 << 62
				_, err := s.jobs.PatchStatus(t.Context(), "x", apiclient.StatusPatch{UID: o.UID, Fence: ahead})
				require.NoError(t, err)
				require.True(t, r.read())
				own := r.fence
				c.lose(s)
				stands := c.steps[1%len(c.steps)] == StepClaimed
				require.Equal(t, stands, r.claim())
				later, now := s.queued("x")
				require.Equal(t, []int{c.later, c.now}, []int{later, now})
				var steps []Step
				for _, e := range s.events() {
					if e.Name != "x" {
						continue
					}
					steps = append(steps, e.Step)
					if stands && e.Step == StepTrouble {
						require.Equal(t, own, e.Fence)
						require.ErrorContains(t, e.Err, fmt.Sprintf("the lock bucket has come to %d", own))
					}
				}
				require.Equal(t, c.steps, steps)
				if stands {
					require.Equal(t, uint64(ahead+1), r.fence)
				} else {
					require.Equal(t, own, r.fence)
				}
			})
		})
	}
}

// What a turn reads decides what it does, and what it cannot read it looks at again.
func TestReadingEndsTheTurnUnlessThereIsSomething(t *testing.T) {
	for name, c := range map[string]struct {
		prepare   func(s *joined, r *run)
		steps     []Step
		later     int
		now       int
		uncertain bool
	}{
		"it is gone": {prepare: func(s *joined, _ *run) {
			_, err := s.jobs.Delete(s.t.Context(), "x")
			require.NoError(s.t, err)
		}, steps: []Step{StepSkipped}},
		"no answer": {prepare: func(s *joined, _ *run) {
			s.meet = func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }
		}, steps: []Step{StepTrouble, StepRequeued}, later: 1, uncertain: true},
		"the replica stops": {prepare: func(s *joined, r *run) {
			s.resign()
		}, steps: []Step{StepLost}, uncertain: true},
	} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				s.put("x")
				r := s.take("x")
				r.uncertain.Store(true)
				r.givenUp = 3
				c.prepare(s, r)
				require.False(t, r.read())
				for _, m := range s.server.Sent(s.names.Schedule("jobs", "x")) {
					for name, want := range notify.Again("changed", 4) { // of which three could not do their work, before this one
						require.Equal(t, want, m.Header[name], name)
					}
				}
				require.Equal(t, c.steps, s.steps())
				later, now := s.queued("x")
				require.Equal(t, []int{c.later, c.now}, []int{later, now})
				require.Equal(t, c.uncertain, r.uncertain.Load(), "a late write can reach it")
			})
		})
	}
}

// A call is counted as one for as long as the function runs, and the object of a turn is of its kind after each write.
func TestCallIsCountedWhileItRuns(t *testing.T) {
	var s *joined
	calling := func() int {
		s.kinds[0].mu.Lock()
		defer s.kinds[0].mu.Unlock()
		return s.kinds[0].calling
	}
	during := 0
	c := ForWithCleanup("jobs", func(_ context.Context, _ *apiclient.Object[job, job]) (Result, error) {
		during = calling()
		return Result{}, nil
	}, doNothing)
	join(t, func(t *testing.T, joined *joined) {
		s = joined
		s.put("x")
		r := s.begin("x")
		require.True(t, r.addFinalizer())
		require.Equal(t, []string{"jobs", s.cfg.Prefix}, []string{r.object.Kind, r.object.Finalizers[0]})
		stored, err := s.jobs.Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, stored.Revision, r.object.Revision)
		out := r.call()
		require.NoError(t, out.err)
		require.Equal(t, 1, during)
		require.Zero(t, calling())
		require.Equal(t, []Step{StepStarted, StepFinished}, s.steps())
	}, c)
}

// Nothing is made for an object that is not marked as one to be cleaned up.
func TestNothingIsMadeWithoutTheFinalizer(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.put("x")
		r := s.begin("x")
		_, err := s.jobs.Delete(t.Context(), "x")
		require.NoError(t, err)
		s.put("x") // another object
		require.False(t, r.addFinalizer())
		require.Equal(t, []Step{StepFenced}, s.steps())
	}, ForWithCleanup("jobs", doNothing, doNothing))
}

// A lock that was released before its release could be watched is taken all the same.
func TestLockThatIsReleasedBeforeItIsWatchedIsTaken(t *testing.T) {
	for name, early := range map[string]bool{"released before": true, "released later": false} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				k := s.kinds[0]
				rival, resign := s.rival()
				defer resign()
				held, err := rival.TryLock(t.Context(), k.lockKey("x"))
				require.NoError(t, err)
				waits := &turn{name: "x", deliveries: []*notify.Delivery{{Kind: "jobs", Name: "x"}}}
				k.waiting["x"] = waits
				if early {
					s.hold["x"] = make(chan struct{}) // until it is released, the event that says that it waits is not over
					go func() {
						synctest.Wait()
						held.Unlock()
						synctest.Wait()
						close(s.hold["x"])
					}()
				}
				lk, err := k.lock(t.Context(), waits)
				if early {
					require.NoError(t, err)
					require.Nil(t, waits.unwatch)
					require.NoError(t, lk.Context().Err())
					lk.Unlock()
					return
				}
				require.ErrorIs(t, err, lock.ErrHeld)
				require.NotNil(t, waits.unwatch)
				before := s.nc.NumSubscriptions()
				_, err = k.lock(t.Context(), waits)
				require.ErrorIs(t, err, lock.ErrHeld)
				require.Equal(t, before, s.nc.NumSubscriptions(), "one watch is enough")
				require.Len(t, s.events(), 1, "and is said once")
				k.Workers, k.busy = 1, 1 // so that it is told, and not begun
				held.Unlock()
				synctest.Wait()
				require.True(t, waits.hint)
				lk, err = k.lock(t.Context(), waits)
				require.NoError(t, err)
				require.Nil(t, waits.unwatch)
				require.Less(t, s.nc.NumSubscriptions(), before)
				lk.Unlock()
			})
		})
	}
}
