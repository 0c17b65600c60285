package workload

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errCut = &net.OpError{Op: "dial", Err: errors.New("cut off")}

func never(context.Context) error { panic("nobody is to ask") }

// Of a cluster that is down one reconcile at a time asks whether it is back, ever more seldom; the others are sent away.
func TestSilentClusterHoldsOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health{slots: make(chan struct{}, atOnce)}
		for range 3 { // of one outage
			h.note(errCut)
		}
		_, err := h.enter(t.Context(), "i", never)
		require.ErrorIs(t, err, errCut)

		began := time.Now()
		var asked []time.Duration
		for time.Since(began) < 2*time.Minute {
			time.Sleep(100 * time.Millisecond)
			_, err := h.enter(t.Context(), "i", func(ctx context.Context) error {
				asked = append(asked, time.Since(began).Round(time.Second))
				_, err := h.enter(ctx, "i", never) // another one at the same time
				require.ErrorIs(t, err, errCut)
				h.note(errCut)
				return errCut
			})
			require.ErrorIs(t, err, errCut)
		}
		require.Equal(t, []time.Duration{5 * time.Second, 15 * time.Second, 35 * time.Second, 65 * time.Second, 95 * time.Second}, asked)

		time.Sleep(downAtMost)
		leave, err := h.enter(t.Context(), "i", func(context.Context) error {
			require.True(t, h.note(nil), "it is back")
			return nil
		})
		require.NoError(t, err)
		leave()
		_, err = h.enter(t.Context(), "i", never)
		require.NoError(t, err)
		h.note(errCut)
		time.Sleep(downFor)
		_, err = h.enter(t.Context(), "i", func(context.Context) error { return nil })
		require.NoError(t, err, "an outage begins with a short pause again")
	})
}

// While a cluster has requests and answers none of them, no further reconcile begins, and at any time no more than so many.
func TestSlowClusterTakesNoMoreWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health{slots: make(chan struct{}, atOnce)}
		answer := make(chan error)
		over := h.answers.over(roundTrip(func(*http.Request) (*http.Response, error) {
			err := <-answer
			return nil, err
		}))
		send := func() {
			go func() {
				_, err := over.RoundTrip(new(http.Request))
				_ = err // as it was sent
			}()
			synctest.Wait()
		}
		enter := func() error {
			leave, err := h.enter(t.Context(), "i", never)
			if err == nil {
				leave()
			}
			return err
		}
		send()
		send()
		time.Sleep(2 * slow)
		require.NoError(t, enter(), "there is room for a second one")
		for range atOnceSlow {
			_, err := h.enter(t.Context(), "i", never)
			require.NoError(t, err)
		}
		require.ErrorIs(t, enter(), errSlow)
		answer <- nil // to one of two
		synctest.Wait()
		send()
		time.Sleep(slow)
		require.NoError(t, enter())
		time.Sleep(time.Nanosecond)
		require.ErrorIs(t, enter(), errSlow)
		answer <- nil // to one of two
		synctest.Wait()
		require.NoError(t, enter())
		time.Sleep(slow + 1)
		require.ErrorIs(t, enter(), errSlow)
		answer <- errCut // which is no answer, but there is nothing to wait for any more
		synctest.Wait()
		require.NoError(t, enter())
		time.Sleep(time.Hour)
		require.NoError(t, enter(), "nothing is asked")

		for range atOnce - atOnceSlow {
			_, err := h.enter(t.Context(), "i", never)
			require.NoError(t, err)
		}
		require.ErrorIs(t, enter(), errBusy)
		require.Equal(t, "i", h.leave(), "who was sent away is told")
		require.Empty(t, h.refused)
		_, err := h.enter(t.Context(), "i", never)
		require.NoError(t, err)
		for _, name := range []string{"first", "second", "third", "first"} {
			_, err := h.enter(t.Context(), name, never)
			require.ErrorIs(t, err, errBusy)
		}
		require.Equal(t, "first", h.leave())
		_, err = h.enter(t.Context(), "third", never) // by itself
		require.NoError(t, err)
		require.Equal(t, []string{"second", "", ""}, []string{h.leave(), h.leave(), h.leave()})
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// R39: a watch that cannot be opened again is not believed for ever.
func TestBrokenWatchIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watch{}
		require.NoError(t, w.failure(0))
		w.note(errCut)
		require.ErrorIs(t, w.failure(0), errCut)
		require.NoError(t, w.failure(believed))
		time.Sleep(believed / 2)
		w.note(errCut) // from the first on it counts
		time.Sleep(believed / 2)
		require.ErrorIs(t, w.failure(believed), errCut)
		w.note(nil)
		require.NoError(t, w.failure(0))
		w.note(errCut)
		require.NoError(t, w.failure(believed))
	})
}
