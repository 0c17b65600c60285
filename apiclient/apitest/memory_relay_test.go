package apitest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A change of an object during its notification is notified as well. Nothing is notified twice.
func TestWhatHappensDuringANotification(t *testing.T) {
	const failing = `{"items":[{"kind":"widgets","name":"blue","spec":{"a":1}},{"kind":"widgets","name":"red","spec":{},"revision":99}]}`
	for name, tt := range map[string]struct {
		method, path, body string
		status             int
		want               []string
	}{
		"a deletion":              {"DELETE", bluePath, "", 204, []string{"created", "deleted"}},
		"a change":                {"PUT", bluePath, `{"spec":{"a":1}}`, 200, []string{"created", "changed"}},
		"a batch that fails":      {"POST", "/v1/batch", failing, 409, []string{"created"}},
		"a write of another kind": {"PUT", "/v1/objects/gears/blue", `{"spec":{}}`, 201, []string{"created", "created"}},
	} {
		t.Run(name, func(t *testing.T) {
			var m *Memory
			var heard []string
			m = NewMemory(func(_ context.Context, _, _, reason string) error {
				if heard = append(heard, reason); len(heard) == 1 {
					require.Equal(t, tt.status, request(m, tt.method, tt.path, tt.body).Code)
				}
				return nil
			})
			require.Equal(t, 201, request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`).Code)
			require.NoError(t, m.Flush(t.Context()))
			require.Equal(t, len(tt.want)-1, m.Dirty())
			require.NoError(t, m.Flush(t.Context()))
			require.Equal(t, tt.want, heard)
			require.Zero(t, m.Dirty())
		})
	}
}

// An outage that is over leaves the next one's first retry as soon as ever.
func TestSuccessForgetsEarlierFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		var deaf atomic.Bool
		deaf.Store(true)
		m := NewMemory(func(context.Context, string, string, string) error {
			if tries.Add(1); deaf.Load() {
				return errors.New("down")
			}
			return nil
		})
		go m.Run(t.Context())
		request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`)
		time.Sleep(time.Minute)
		synctest.Wait()
		deaf.Store(false)
		time.Sleep(lastRetry)
		synctest.Wait()
		require.Zero(t, m.Dirty())
		for range 20 {
			deaf.Store(true)
			tries.Store(0)
			request(m, "POST", bluePath+"/retry", "")
			synctest.Wait()
			require.EqualValues(t, 1, tries.Load())
			deaf.Store(false)
			time.Sleep(firstRetry)
			synctest.Wait()
			require.EqualValues(t, 2, tries.Load())
		}
	})
}

// An object whose finalizer is taken off after everybody has heard of its deletion needs no tombstone.
func TestObjectThatGoesWithoutANotificationLeavesNoRow(t *testing.T) {
	m := silent()
	var made struct{ UID string }
	decodeBody(t, request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`), &made)
	patch := func(what string) int {
		return request(m, "PATCH", bluePath+"/status", `{"uid":"`+made.UID+`","fence":1,"`+what+`":["f"]}`).Code
	}
	require.Equal(t, 200, patch("addFinalizers"))
	require.Equal(t, 202, request(m, "DELETE", bluePath, "").Code)
	require.NoError(t, m.Flush(t.Context()))
	require.Len(t, m.rows, 1)
	require.Equal(t, 204, patch("removeFinalizers"))
	require.Empty(t, m.rows)
	require.Equal(t, 404, request(m, "GET", bluePath, "").Code)
}
