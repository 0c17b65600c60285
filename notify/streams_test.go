package notify

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

var testNames = subject.Names{Prefix: "evenkeel"}

// right is the work stream as the server keeps it.
func right() jetstream.StreamConfig {
	c := workStream(testNames, Config{})
	c.Replicas, c.MaxMsgs, c.MaxBytes, c.MaxMsgSize = 1, -1, -1, -1
	return c
}

// What an operator added stays; what Evenkeel cannot work with is set right; limits are taken off, but are no reason not to
// start.
func TestRepairedChangesOnlyWhatEvenkeelDependsOn(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   Config
		fatal  bool
		keeps  func(*jetstream.StreamConfig) // what stays of the change
	}{
		"right": {change: func(*jetstream.StreamConfig) {}},
		"an operator's own": {
			change: func(c *jetstream.StreamConfig) { c.Compression, c.Description = jetstream.S2Compression, "mine" },
			keeps:  func(c *jetstream.StreamConfig) { c.Compression, c.Description = jetstream.S2Compression, "mine" },
		},
		"fewer subjects":        {change: func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[:2] }, fatal: true},
		"discard new":           {change: func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew }, fatal: true},
		"more than one of each": {change: func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }, fatal: true},
		"no schedules":          {change: func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = false }, fatal: true},
		"no time to live":       {change: func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }, fatal: true},
		"no rollup":             {change: func(c *jetstream.StreamConfig) { c.AllowRollup = false }, fatal: true},
		"no acks":               {change: func(c *jetstream.StreamConfig) { c.NoAck = true }, fatal: true},
		"other replicas are asked for": {
			change: func(*jetstream.StreamConfig) {}, want: Config{Replicas: 3}, fatal: true,
			keeps: func(c *jetstream.StreamConfig) { c.Replicas = 3 },
		},
		"no number is asked for": {
			change: func(c *jetstream.StreamConfig) { c.Replicas = 3 },
			keeps:  func(c *jetstream.StreamConfig) { c.Replicas = 3 },
		},
		"a limit":             {change: func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		"few consumers":       {change: func(c *jetstream.StreamConfig) { c.MaxConsumers = 10 }},
		"unlimited consumers": {change: func(c *jetstream.StreamConfig) { c.MaxConsumers = -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			want := workStream(testNames, tt.want)
			have, expected := right(), right()
			have.FirstSeq, want.FirstSeq, expected.FirstSeq = 5, 9, 5
			tt.change(&have)
			if tt.keeps != nil {
				tt.keeps(&expected)
			}
			next, fatal := repaired(have, want)
			require.Equal(t, tt.fatal, fatal)
			require.Equal(t, expected, next)
		})
	}
	history := historyStream(testNames, Config{})
	have := history
	have.AllowMsgTTL, have.AllowMsgSchedules, have.AllowRollup, have.MaxConsumers = true, true, true, 5
	next, fatal := repaired(have, history)
	require.False(t, fatal)
	require.Equal(t, have, next, "the history stream keeps its limits, and what it has more")
}

func TestLimitsNamesWhatDropsNotifications(t *testing.T) {
	c := right()
	require.Empty(t, limits(c))
	c.Discard = jetstream.DiscardNew
	require.Equal(t, "discard new", limits(c))
	c.MaxMsgs, c.MaxAge = 10, time.Hour
	require.Equal(t, "max_msgs 10, max_age 1h0m0s, discard new", limits(c))
}

// A stream that keeps more than one message of a subject, or none of its own sequences, keeps none of the promises.
func TestWorkStreamIsShapedForOneMessageOfEachSubject(t *testing.T) {
	c := workStream(testNames, Config{Replicas: 3, Storage: jetstream.MemoryStorage})
	require.EqualValues(t, 1, c.MaxMsgsPerSubject)
	require.Equal(t, jetstream.WorkQueuePolicy, c.Retention)
	require.Equal(t, 3, c.Replicas)
	require.Equal(t, jetstream.MemoryStorage, c.Storage)
	require.InDelta(t, time.Now().UnixMicro(), c.FirstSeq, 60e6, "a stream that is made again goes on above every sequence")
	require.True(t, c.AllowMsgSchedules && c.AllowMsgTTL && c.AllowRollup)
	require.Greater(t, c.MaxConsumers, 1000, "the server's own limit would end an installation at 500 kinds")
	h := historyStream(testNames, Config{})
	require.EqualValues(t, 1000, h.MaxMsgsPerSubject)
	require.EqualValues(t, 64<<20, h.MaxBytes)
}

// Servers leave out the settings that they do not know, and report success.
func TestServerThatIsTooOldIsToldByWhatItLacks(t *testing.T) {
	want := right()
	for lack, change := range map[string]func(*jetstream.StreamConfig){
		"message schedules (retries would never come); ":                                 func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = false },
		"has no a time to live per message (nothing would be taken over); ":              func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false },
		"(retries would never come) and no a time to live per message (nothing would be": func(c *jetstream.StreamConfig) { c.AllowMsgSchedules, c.AllowMsgTTL = false, false },
	} {
		have := right()
		change(&have)
		err := understood(new(nats.Conn), have, want)
		require.ErrorIs(t, err, ErrServerTooOld)
		require.ErrorContains(t, err, lack)
		require.ErrorContains(t, err, "2.12 or later")
		require.NoError(t, understood(new(nats.Conn), have, historyStream(testNames, Config{})), "which needs neither")
	}
	require.NoError(t, understood(new(nats.Conn), want, want))
}

func TestPlainlySaysThatJetStreamIsOff(t *testing.T) {
	for _, err := range []error{jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrNoResponders} {
		require.ErrorIs(t, plainly(err), ErrNoJetStream)
		require.ErrorIs(t, plainly(err), err)
	}
	other := errors.New("x")
	require.Equal(t, other, plainly(other))
}

// info is the server's answer with a stream.
func info(t *testing.T, c jetstream.StreamConfig) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"config": c, "state": map[string]any{}, "created": "2026-01-02T03:04:05Z"})
	require.NoError(t, err)
	return string(b)
}

func TestEnsureStream(t *testing.T) {
	const create, update = "$JS.API.STREAM.CREATE.", "$JS.API.STREAM.UPDATE."
	is := func(change func(*jetstream.StreamConfig)) string {
		c := right()
		change(&c)
		return info(t, c)
	}
	fine := is(func(*jetstream.StreamConfig) {})
	limited := is(func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	keepsMore := is(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 })
	old := is(func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false })
	tooFew := script.Error(400, 10026, "maximum consumers limit reached")
	for name, tt := range map[string]struct {
		found   []string
		creates []string
		updates []string
		err     string
		is      error
	}{
		"is right":                 {found: []string{fine}},
		"made":                     {found: []string{noStream}, creates: []string{fine}},
		"the account allows fewer": {found: []string{noStream}, creates: []string{tooFew, fine}},
		"and not that either":      {found: []string{noStream}, creates: []string{tooFew, tooFew}, err: "create it"},
		"another was quicker":      {found: []string{noStream, fine}, creates: []string{script.Error(400, 10058, "stream name already in use")}},
		"and is gone again":        {found: []string{noStream, unavailable}, creates: []string{script.Error(400, 10058, "stream name already in use")}, err: "temporarily"},
		"the account wants bytes":  {found: []string{noStream}, creates: []string{script.Error(400, 10113, "max bytes required")}, err: "lift max_bytes_required"},
		"cannot be made":           {found: []string{noStream}, creates: []string{unavailable}, err: "look at stream evenkeel_work: create it: "},
		"cannot be looked at":      {found: []string{unavailable}, err: "look at stream evenkeel_work: "},
		"is not answered":          {found: []string{script.Silence}, err: "look at stream evenkeel_work: no answer: "},
		"no JetStream":             {found: []string{script.NoResponders}, err: "or it is still starting", is: ErrNoJetStream},
		"of another retention": {
			found: []string{is(func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy })},
			err:   "stream evenkeel_work: its retention is Limits, Evenkeel needs WorkQueue", is: ErrStreamSettings,
		},
		"in memory": {
			found: []string{is(func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage })},
			err:   "its storage is Memory, Evenkeel needs File", is: ErrStreamSettings,
		},
		"repaired":                          {found: []string{keepsMore}, updates: []string{fine}},
		"cannot be repaired":                {found: []string{keepsMore}, updates: []string{script.Error(400, 10052, "no")}, err: "change it by hand", is: ErrStreamSettings},
		"cannot be repaired now":            {found: []string{keepsMore}, updates: []string{script.Error(500, 10052, "no")}, err: "update stream evenkeel_work: "},
		"has limits":                        {found: []string{limited}, updates: []string{fine}},
		"which nobody may take off":         {found: []string{limited}, updates: []string{script.Error(400, 10052, "no")}},
		"which nobody hears":                {found: []string{limited}, updates: []string{script.Silence}},
		"of a server that is too old":       {found: []string{old}, updates: []string{old}, err: "nothing would be taken over", is: ErrServerTooOld},
		"made by a server that is too old":  {found: []string{noStream}, creates: []string{old}, updates: []string{old}, is: ErrServerTooOld, err: "stream"},
		"has limits and a server that is 2": {found: []string{is(func(c *jetstream.StreamConfig) { c.MaxAge, c.AllowMsgTTL = time.Hour, false })}, updates: []string{fine}},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				js, err := jetstream.New(nc)
				require.NoError(t, err)
				s.Answer(streamInfoOf, tt.found...)
				s.Answer(create, tt.creates...)
				s.Answer(update, tt.updates...)
				start := time.Now()
				err = ensureStream(t.Context(), nc, js, workStream(testNames, Config{}))
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				if tt.is != nil {
					require.ErrorIs(t, err, tt.is)
				} else {
					require.NotErrorIs(t, err, ErrStreamSettings)
				}
				if name == "which nobody hears" {
					require.Equal(t, jsapi.LimitsWithin, time.Since(start), "a start does not wait long for that")
				}
				require.Len(t, s.Sent(create), len(tt.creates))
				require.Len(t, s.Sent(update), len(tt.updates))
				for i, m := range s.Sent(create) {
					require.Equal(t, i == 0, strings.Contains(string(m.Data), `"max_consumers":1000000`), "as many as the account allows")
					require.Equal(t, i == 1, strings.Contains(string(m.Data), `"max_consumers":0`))
					require.Contains(t, string(m.Data), `"num_replicas":1`, "0 is none")
				}
			})
		})
	}
}

// answers are those of a server that has everything.
func allThere(t *testing.T, s *script.Server) {
	t.Helper()
	s.Answer(streamInfoOf+"evenkeel_work", info(t, right()))
	s.Answer(streamInfoOf+"evenkeel_history", info(t, historyStream(testNames, Config{})))
	s.Answer(getMessage, script.Stored("evenkeel.sentinel", 1, nil, ""))
	for _, kind := range []string{"widgets", "gears"} {
		s.Answer("$JS.API.CONSUMER.INFO.evenkeel_work."+kind, consumerConfig(
			`"filter_subject":"evenkeel.n.`+kind+`.>","ack_policy":"explicit","ack_wait":10000000000,"max_ack_pending":-1,"max_deliver":-1`))
		s.Answer("$JS.API.CONSUMER.INFO.evenkeel_work."+kind+"_later", consumerConfig(
			`"filter_subject":"evenkeel.r.`+kind+`.>","ack_policy":"explicit","ack_wait":10000000000,"max_ack_pending":-1,"max_deliver":-1`))
	}
}

// A user without the right to create anything passes if all is there.
func TestStreamsWritesNothingWhereAllIsRight(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		allThere(t, s)
		require.NoError(t, Streams(t.Context(), nc, Config{}, "widgets", "gears"))
		require.Len(t, s.Sent("$JS.API.STREAM.INFO."), 2)
		require.Len(t, s.Sent("$JS.API.CONSUMER.INFO."), 4)
		require.Len(t, s.Sent("$JS.API.STREAM.MSG.GET."), 1)
		require.Len(t, s.Sent(""), 7)
	})
}

func TestStreamsReportsEachPartThatFails(t *testing.T) {
	for part, want := range map[string]string{
		streamInfoOf + "evenkeel_work":    "look at stream evenkeel_work",
		streamInfoOf + "evenkeel_history": "look at stream evenkeel_history",
		getMessage:                        "temporarily unavailable",
		consumerInfo:                      "look at consumer widgets of",
		"$JS.API.CONSUMER.INFO.evenkeel_work.gears_later": "look at consumer gears_later",
	} {
		scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
			allThere(t, s)
			s.Answer(part, unavailable)
			require.ErrorContains(t, Streams(t.Context(), nc, Config{}, "widgets", "gears"), want)
		})
	}
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		allThere(t, s)
		require.ErrorContains(t, Streams(t.Context(), nc, Config{}, "a.b"), `notify: kind "a.b"`)
	})
}

func TestSentinelIsPutWhereThereIsNone(t *testing.T) {
	for answer, want := range map[string]string{stored: "", wrongSequence: "", unavailable: "put sentinel into stream evenkeel_work: "} {
		scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
			allThere(t, s)
			s.Answer(getMessage, noMessage)
			s.Answer("evenkeel.sentinel", answer)
			err := Streams(t.Context(), nc, Config{})
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
			sent := s.Sent("evenkeel.")
			require.Len(t, sent, 1)
			require.Equal(t, "0", sent[0].Header.Get("Nats-Expected-Last-Subject-Sequence"), "two that start at once put one")
			require.Contains(t, string(sent[0].Data), "leave it here")
		})
	}
}
