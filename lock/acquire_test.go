package lock

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// Each of the server's answers leads to a lock, to word of who holds it, or to an error. An acquisition without an answer
// may have been stored, and is looked for later.
func TestTryLock(t *testing.T) {
	dead := &Predecessor{Holder: "other", Died: true}
	for name, tt := range map[string]struct {
		publish []string
		reads   func(own string) []string
		lose    bool // the session is over when the answer comes

		fence   uint64
		before  *Predecessor
		err     error
		text    string
		expects []string
		doubt   bool
		suspect bool
		frees   []release
		within  time.Duration
	}{
		"free":            {publish: []string{storedAt(7)}, fence: 7, expects: []string{"0"}},
		"just released":   {publish: []string{wrongSequence, storedAt(7)}, reads: func(string) []string { return []string{released(5, nil)} }, fence: 7, expects: []string{"0", "5"}},
		"of a dead one":   {publish: []string{wrongSequence, storedAt(7)}, reads: func(string) []string { return []string{released(5, dead)} }, fence: 7, before: dead, expects: []string{"0", "5"}},
		"gone meanwhile":  {publish: []string{wrongSequence, storedAt(7)}, reads: func(string) []string { return []string{noMessage} }, fence: 7, expects: []string{"0", "0"}},
		"held by another": {publish: []string{wrongSequence}, reads: func(string) []string { return []string{lockedBy(5, "other", 1, nil)} }, err: ErrHeld, text: "lock jobs.a: lock is held by other", expects: []string{"0"}, suspect: true},
		"held by another goroutine": {
			publish: []string{wrongSequence}, reads: func(own string) []string { return []string{lockedBy(5, own, 1, nil)} },
			err: ErrHeld, text: "lock jobs.a: lock is held by ", expects: []string{"0"},
		},
		"stored by a try whose answer was lost": {
			publish: []string{wrongSequence}, reads: func(own string) []string { return []string{lockedBy(5, own, 2, dead)} }, fence: 5, before: dead, expects: []string{"0"},
		},
		"its release is on its way": {
			publish: []string{wrongSequence, wrongSequence, storedAt(7)}, fence: 7, expects: []string{"0", "0", "5"}, within: time.Millisecond,
			reads: func(own string) []string { return []string{lockedBy(4, own, 3, nil), released(5, nil)} },
		},
		"its release takes long": {
			publish: []string{wrongSequence}, err: ErrHeld, text: "lock jobs.a: lock is held: it keeps changing hands",
			reads:   func(own string) []string { return []string{lockedBy(4, own, 3, nil)} },
			expects: []string{"0", "0", "0", "0", "0", "0"}, within: 63 * time.Millisecond,
		},
		"others are always quicker": {
			publish: []string{wrongSequence}, reads: func(string) []string { return []string{released(5, nil)} },
			err: ErrHeld, text: "it keeps changing hands", expects: []string{"0", "5", "5", "5", "5", "5"},
		},
		"refused":        {publish: []string{unavailable}, text: "lock jobs.a: temporarily unavailable", expects: []string{"0"}},
		"nobody hears":   {text: "lock jobs.a: request $KV.b.lock.jobs.a: no answer", expects: []string{"0"}, doubt: true},
		"not answered":   {publish: []string{script.Silence}, err: context.DeadlineExceeded, text: "lock jobs.a: ", expects: []string{"0"}, doubt: true, within: jsapi.Timeout},
		"cannot be read": {publish: []string{wrongSequence}, reads: func(string) []string { return []string{unavailable} }, text: "look at lock jobs.a: ", expects: []string{"0"}},
		"not a lock":     {publish: []string{wrongSequence}, reads: func(string) []string { return []string{found(5, nil, "hello")} }, text: "look at lock jobs.a: its value is not ours (delete the key to free it)", expects: []string{"0"}},
		"stored by an earlier try, and the session lost": {
			publish: []string{wrongSequence}, reads: func(own string) []string { return []string{lockedBy(5, own, 2, dead)} }, lose: true,
			err: ErrLost, text: "lock jobs.a: ", expects: []string{"0"}, frees: []release{{subject: "$KV.b.lock.jobs.a", fence: 5, predecessor: dead}},
		},
		"session lost": {
			publish: []string{storedAt(7)}, lose: true, err: ErrLost, text: "lock jobs.a: ", expects: []string{"0"},
			frees: []release{{subject: "$KV.b.lock.jobs.a", fence: 7}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				ses := live(l)
				first, _ := ses.begin() // another try for some lock
				require.EqualValues(t, 1, first)
				s.Answer("$KV.b.lock.jobs.a", tt.publish...)
				if tt.reads != nil {
					s.Answer(reads("lock.jobs.a"), tt.reads(ses.id)...)
				}
				begun := time.Now()
				var k *Lock
				var err error
				if tt.lose {
					nonce, _ := ses.begin()
					ses.lose()
					k, err = l.tryLock(t.Context(), ses, "jobs.a", nonce)
				} else {
					k, err = l.TryLock(t.Context(), "jobs.a")
				}
				require.Equal(t, tt.within, time.Since(begun))
				sent := s.Sent("$KV.b.lock.jobs.a")
				require.Equal(t, tt.expects, expected(sent))
				var e entry
				require.NoError(t, json.Unmarshal(sent[len(sent)-1].Data, &e))
				require.Equal(t, entry{Session: ses.id, Holder: "me", Nonce: 2, Since: e.Since}, entry{e.Session, e.Holder, e.Nonce, e.Since, nil})
				require.Equal(t, tt.frees, freed(l))
				require.Equal(t, tt.doubt, len(ses.openDoubts()) == 1)
				_, suspected := l.suspects.take()["other"]
				require.Equal(t, tt.suspect, suspected)
				if tt.err != nil {
					require.ErrorIs(t, err, tt.err)
				}
				if tt.text == "" {
					require.NoError(t, err)
					require.Equal(t, tt.fence, k.Fence())
					require.Equal(t, "jobs.a", k.Key())
					require.Equal(t, tt.before, k.Predecessor())
					require.True(t, ses.knows(2))
					if len(sent) > 1 {
						require.Equal(t, tt.before, e.Predecessor, "it goes back into the marker if nobody learns of this lock")
					}
					return
				}
				require.ErrorContains(t, err, tt.text)
				require.Nil(t, k)
				require.Equal(t, tt.doubt || tt.lose, ses.knows(2))
			})
		})
	}
}

func TestTryLockNeedsASession(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoSession)
		require.ErrorContains(t, err, "lock a: ")
		live(l).lose()
		_, err = l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoSession)
		require.ErrorContains(t, err, "lock a: ")
		require.Empty(t, s.Sent(""))
	})
}

// A caller that gives up is not kept by a release that is on its way.
func TestTryLockEndsWithItsContext(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		ses := live(l)
		s.Answer("$KV.b.lock.a", wrongSequence)
		s.Answer(reads("lock.a"), lockedBy(4, ses.id, 3, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := l.TryLock(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 20*time.Millisecond, time.Since(begun))
	})
}

func TestHeldTellsALockFromWhatIsLeftOfOne(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		s.Answer(reads("lock.a"), noMessage, released(5, nil), lockedBy(6, "other", 1, nil), unavailable)
		for _, want := range []bool{false, false, true} {
			is, err := l.Held(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, want, is)
		}
		is, err := l.Held(t.Context(), "a")
		require.ErrorContains(t, err, "look at lock a: ")
		require.False(t, is)

		s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a", "lock.jobs.b.c"), listing(), unavailable)
		keys, err := l.HeldKeys(t.Context(), "jobs.>")
		require.NoError(t, err)
		require.Equal(t, map[string]struct{}{"jobs.a": {}, "jobs.b.c": {}}, keys)
		keys, err = l.HeldKeys(t.Context(), "jobs.>")
		require.NoError(t, err)
		require.Empty(t, keys)
		_, err = l.HeldKeys(t.Context(), "jobs.>")
		require.ErrorContains(t, err, "list locks jobs.>: ")
	})
}

// The key must hold this lock, not just one of this process: the bucket may have gone back in time.
func TestConfirmAsksForExactlyThisLock(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(own string) string
		err    error
		text   string
	}{
		"it stands":                    {answer: func(own string) string { return lockedBy(7, own, 1, nil) }},
		"it is gone":                   {answer: func(string) string { return noMessage }, err: ErrLost, text: "confirm lock a: it is not stored"},
		"it was released":              {answer: func(string) string { return released(8, nil) }, err: ErrLost, text: "confirm lock a: it is not stored"},
		"another holds it":             {answer: func(string) string { return lockedBy(7, "other", 1, nil) }, err: ErrLost, text: "held by other at revision 7, not 7"},
		"an earlier one of ours":       {answer: func(own string) string { return lockedBy(7, own, 2, nil) }, err: ErrLost, text: "at revision 7"},
		"it was stored at another one": {answer: func(own string) string { return lockedBy(6, own, 1, nil) }, err: ErrLost, text: "at revision 6, not 7"},
		"it is not known":              {answer: func(string) string { return unavailable }, text: "confirm: look at lock a: "},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				ses := live(l)
				s.Answer("$KV.b.lock.a", storedAt(7))
				k, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err)
				s.Answer(reads("lock.a"), tt.answer(ses.id))
				err = k.Confirm(t.Context())
				if tt.text == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, tt.text)
				if tt.err == nil {
					require.NotErrorIs(t, err, ErrLost)
				} else {
					require.ErrorIs(t, err, tt.err)
				}
			})
		})
	}
}

// When a marker should be gone, the server's clock says.
func TestLookSaysUntilWhenAMarkerStays(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		p := &Predecessor{Holder: "other"}
		s.Answer(reads("lock.a"), released(5, nil), released(6, p), found(7, map[string][]string{"KV-Operation": {"PURGE"}}, ""), noMessage)
		for _, want := range []last{
			{revision: 5, until: script.Time.Add(time.Second)},
			{revision: 6, until: script.Time.Add(15 * time.Minute), predecessor: p},
			{revision: 7, until: script.Time},
			{},
		} {
			got, err := l.look(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	scripted(t, func(t *testing.T, _ *script.Server, l *Locker, _ *heard) {
		require.Equal(t, 10*time.Second, l.cfg.TTL)
		_, err := New(nil, Config{Bucket: "b"})
		require.ErrorContains(t, err, "no NATS connection")
		recover := func(context.Context, string, string) error { return nil }
		for name, tt := range map[string]struct {
			cfg Config
			err string
		}{
			"the least":           {cfg: Config{Bucket: "b", TTL: 2 * time.Second}},
			"three seconds":       {cfg: Config{Bucket: "b", TTL: 3 * time.Second}},
			"with recovery":       {cfg: Config{Bucket: "b", Keys: []string{"a"}, Recover: recover}},
			"recovers nothing":    {cfg: Config{Bucket: "b", Recover: recover}},
			"no bucket":           {err: "Config.Bucket is empty"},
			"too short":           {cfg: Config{Bucket: "b", TTL: time.Second}, err: "Config.TTL 1s: want whole seconds, 2 or more"},
			"not whole seconds":   {cfg: Config{Bucket: "b", TTL: 2500 * time.Millisecond}, err: "Config.TTL 2.5s: want whole seconds"},
			"cannot be recovered": {cfg: Config{Bucket: "b", Keys: []string{"a"}}, err: "Config.Keys without Config.Recover"},
		} {
			l, err := New(l.nc, tt.cfg)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err, name)
				continue
			}
			require.NoError(t, err, name)
			require.Equal(t, "$KV.b.", l.kv)
			require.Equal(t, "KV_b", l.name)
			l.cfg.OnError("x", nil) // who gives none is not called
			l.cfg.OnReady()
		}
	})
}
