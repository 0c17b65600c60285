package reconcilertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each time in a message moves, and its sizes are those of the text that comes of it.
func TestTimesInFramesAreTranslated(t *testing.T) {
	later := func(t time.Time) time.Time { return t.Add(time.Minute) }
	for name, c := range map[string]struct{ frame, want string }{
		"a schedule": {
			"HPUB s.x r 78 78\r\nNATS/1.0\r\nNats-Schedule: @at 2000-01-01T00:00:59Z\r\nNats-Schedule-Target: t\r\n\r\n\r\n",
			"HPUB s.x r 78 78\r\nNATS/1.0\r\nNats-Schedule: @at 2000-01-01T00:01:59Z\r\nNats-Schedule-Target: t\r\n\r\n\r\n",
		},
		"fractions": {
			"MSG i 1 40\r\n" + `{"time":"2000-01-01T00:00:59.5Z","seq":1}` + "\r\n",
			"MSG i 1 41\r\n" + `{"time":"2000-01-01T00:01:59.5Z","seq":1}` + "\r\n",
		},
		"a reply subject": {
			"MSG n 1 $JS.ACK.work.jobs.1.2.3.1700000000000000000.0 1\r\n{\r\n",
			"MSG n 1 $JS.ACK.work.jobs.1.2.3.1700000060000000000.0 1\r\n{\r\n",
		},
		"a first sequence": {
			"PUB c r 32\r\n" + `{"name":"n","first_seq":1700000000000000}` + "\r\n",
			"PUB c r 41\r\n" + `{"name":"n","first_seq":1700000060000000}` + "\r\n",
		},
		"no time":     {"PUB c 3\r\nabc\r\n", "PUB c 3\r\nabc\r\n"},
		"the zero":    {"PUB c 31\r\n" + `{"time":"0001-01-01T00:00:00Z"}` + "\r\n", "PUB c 31\r\n" + `{"time":"0001-01-01T00:00:00Z"}` + "\r\n"},
		"no message":  {"PING\r\n", "PING\r\n"},
		"of a record": {"PUB c 36\r\n" + `{"nextAttempt":"2000-01-01T00:00:00Z"}` + "\r\n", "PUB c 38\r\n" + `{"nextAttempt":"2000-01-01T00:01:00Z"}` + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, string(frame(c.frame).translated(later))) })
	}
}

// A time of the World is the same to a replica whenever it gets it, and its own times come back as they were.
func TestClocksAreInvertible(t *testing.T) {
	began := time.Unix(1_000_000_000, 0)
	c := clock{Clock{Ahead: -3 * time.Minute, Drift: 0.01}, began}
	require.Equal(t, began.Add(-3*time.Minute), c.out(began))
	require.Equal(t, began.Add(100*time.Second+time.Second-3*time.Minute), c.out(began.Add(100*time.Second)))
	for _, d := range []time.Duration{-time.Hour, 0, time.Second, 1234567891 * time.Nanosecond, 24 * time.Hour} {
		require.WithinDuration(t, began.Add(d), c.in(c.out(began.Add(d))), 10*time.Nanosecond)
	}
}
