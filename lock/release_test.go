package lock

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// answer is what the server says to release id.
func answer(r *releases, id uint64, body, status string) {
	r.confirm(&nats.Msg{Subject: "_INBOX.x." + strconv.FormatUint(id, 10), Data: []byte(body), Header: nats.Header{"Status": {status}}})
}

// sent takes the releases that are to be sent now, as the loop of send does.
func sent(r *releases) (ids []uint64) {
	for _, id := range r.take() {
		if r.begin(id) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// A release that got lost would leave its object locked for as long as this process lives.
func TestReleaseIsSentUntilItIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReleases(nil)
		r.add(&release{subject: "a"})
		r.add(&release{subject: "b"})
		require.Len(t, r.wake, 1, "whoever sends is woken")
		require.Equal(t, []uint64{1, 2}, sent(&r))
		require.Empty(t, sent(&r), "each is sent once")

		time.Sleep(resendAfter - 1)
		r.resend()
		require.Empty(t, sent(&r), "its answer may be on its way")
		time.Sleep(time.Nanosecond)
		answer(&r, 1, `{"stream":"KV_locks","seq":3}`, "")
		r.resend()
		r.resend()
		require.Equal(t, []uint64{2}, sent(&r), "what is confirmed is not sent again, and the other one once")

		time.Sleep(resendAfter)
		r.resend()
		require.Equal(t, []uint64{2}, sent(&r), "and again after the same time")

		r.add(&release{subject: "c"})
		time.Sleep(resendAfter)
		r.resend()
		require.ElementsMatch(t, []uint64{2, 3}, sent(&r), "what waits to be sent is not sent twice; all that was sent is")
	})
}

func TestReleaseIsDoneWhenTheLockIsNotOursAnyMore(t *testing.T) {
	for name, tt := range map[string]struct {
		body, status string
		done         bool
	}{
		"stored":                  {body: `{"stream":"KV_locks","seq":3}`, done: true},
		"the lock has passed on":  {body: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}`, done: true},
		"the server cannot store": {body: `{"error":{"code":503,"err_code":10077,"description":"no space"}}`},
		"nobody hears":            {status: "503"},
		"no answer of a server":   {body: `hello`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReleases(nil)
			r.add(&release{})
			answer(&r, 1, tt.body, tt.status)
			require.Equal(t, !tt.done, len(r.pending) == 1)
		})
	}
}

// A stop waits until every release is confirmed, and says how many are not.
func TestFlushWaitsForTheLastRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReleases(nil)
		require.NoError(t, r.flush(t.Context()), "nothing to wait for")
		r.add(&release{})
		r.add(&release{})
		flushed := make(chan error, 2)
		for range 2 {
			go func() { flushed <- r.flush(t.Context()) }()
		}
		synctest.Wait()
		answer(&r, 2, `{"stream":"s","seq":1}`, "")
		synctest.Wait()
		require.Empty(t, flushed, "one is open")
		answer(&r, 1, `{"stream":"s","seq":2}`, "")
		require.NoError(t, <-flushed)
		require.NoError(t, <-flushed)

		r.add(&release{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := r.flush(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 releases unconfirmed")
	})
}

// The locks of a session that was lost are recovered by others: a release would free them with work left behind.
func TestReleasesOfALostSessionAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReleases(nil)
		dead, live := newSession(""), newSession("")
		r.add(&release{s: dead})
		r.add(&release{s: dead})
		r.add(&release{s: live})
		r.add(&release{})
		r.drop(dead)
		require.Equal(t, []uint64{3, 4}, sent(&r))
		flushed := make(chan error, 1)
		go func() { flushed <- r.flush(t.Context()) }()
		synctest.Wait()
		r.drop(live)
		r.drop(nil)
		require.NoError(t, <-flushed, "who waits for them waits no longer")
	})
}

// Each answer belongs to one release, and those of a lost session are not sent although they waited to be.
func TestReleasesAreSentAndConfirmedEachByItself(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		stop, err := l.releases.listen()
		require.NoError(t, err)
		defer stop()
		require.NoError(t, l.nc.Flush())
		s.Answer("$KV.b.lock.", storedAt(7))
		s.Answer("$KV.b.lock.never", unavailable)
		s.Answer("$KV.b.lock.unheard", script.NoResponders)
		dead := newSession("")
		l.releases.add(&release{subject: "$KV.b.lock.dead", s: dead})
		l.free("never", 5, nil)
		l.free("unheard", 5, nil)
		for range 20 {
			l.free("a", 5, nil)
		}
		l.releases.drop(dead)
		quit, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			l.releases.send(quit)
		}()
		synctest.Wait()
		require.Len(t, s.Sent("$KV.b.lock.a"), 20)
		require.Empty(t, s.Sent("$KV.b.lock.dead"))
		require.Equal(t, []release{{subject: "$KV.b.lock.never", fence: 5}, {subject: "$KV.b.lock.unheard", fence: 5}}, freed(l))
		sleepFor(resendAfter)
		require.Len(t, s.Sent("$KV.b.lock."), 24)
		require.Len(t, freed(l), 2)
		close(quit)
		<-done
	})
}

// What a holder leaves behind for the next one is in the marker of its release.
func TestMarkerNamesThePredecessor(t *testing.T) {
	for _, p := range []*Predecessor{nil, {Holder: "a\nb\"c"}, {Holder: "x", Died: true}} {
		m := marker(nats.NewMsg("s"), 7, p)
		require.Equal(t, p, markedPredecessor(m.Header))
		require.Equal(t, "DEL", m.Header.Get(jsapi.HeaderOperation))
		require.Equal(t, "7", m.Header.Get("Nats-Expected-Last-Subject-Sequence"))
		want := "1s"
		if p != nil {
			want = "900s"
		}
		require.Equal(t, want, m.Header.Get(jsapi.HeaderTTL), "writes of a predecessor may arrive for a quarter of an hour")
	}
	require.Equal(t, &Predecessor{Holder: "of an older version"}, markedPredecessor(nats.Header{headerPredecessor: {"of an older version"}}))
}
