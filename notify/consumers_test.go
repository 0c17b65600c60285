package notify

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

var widgetLanes = lanes(subject.Names{Prefix: "evenkeel"}, "widgets")

// What an operator changes and loses notifications is told; what harms nothing is left alone.
func TestDifferencesNamesWhatLosesNotifications(t *testing.T) {
	for want, change := range map[string]func(*jetstream.ConsumerConfig){
		"":                                     func(*jetstream.ConsumerConfig) {},
		"ack_wait 1m0s instead of 10s":         func(c *jetstream.ConsumerConfig) { c.AckWait = time.Minute },
		"max_ack_pending 1000 instead of -1":   func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1000 },
		"max_deliver 5 instead of -1":          func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"backoff true instead of false":        func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{1} },
		"filter_subject evenkeel.n.widgets.3.": func(c *jetstream.ConsumerConfig) { c.FilterSubject = "evenkeel.n.widgets.3.>" },
		"max_deliver 5 instead of -1, backoff": func(c *jetstream.ConsumerConfig) { c.MaxDeliver, c.BackOff = 5, []time.Duration{1} },
	} {
		have := widgetLanes[laneFresh].config()
		have.MaxWaiting, have.Description, have.InactiveThreshold = 600, "mine", time.Hour
		change(&have)
		got := widgetLanes[laneFresh].differences(have)
		require.True(t, strings.HasPrefix(got, want) && (want != "" || got == ""), "%q, want %q", got, want)
	}
}

// consumerConfig is the server's answer with a consumer.
func consumerConfig(fields string) string {
	return `{"type":"io.nats.jetstream.api.v1.consumer_info_response","stream_name":"evenkeel_work","name":"widgets","config":{` + fields + `}}`
}

const asItShouldBe = `"filter_subject":"evenkeel.n.widgets.>","ack_policy":"explicit","ack_wait":10000000000,"max_ack_pending":-1,"max_deliver":-1`

func TestEnsureConsumer(t *testing.T) {
	const create = "$JS.API.CONSUMER.CREATE.evenkeel_work.widgets"
	noConsumer := script.Error(404, 10014, "consumer not found")
	for name, tt := range map[string]struct {
		found  string
		writes []string // what the server answers to each
		err    string
		is     error
	}{
		"is right":             {found: consumerConfig(asItShouldBe)},
		"made":                 {found: noConsumer, writes: []string{consumerConfig(asItShouldBe)}},
		"another was quicker":  {found: noConsumer, writes: []string{script.Error(400, 10148, "consumer already exists")}},
		"no more are allowed":  {found: noConsumer, writes: []string{script.Error(400, 10026, "maximum consumers limit reached")}, err: "raise max_consumers", is: ErrTooManyConsumers},
		"cannot be made":       {found: noConsumer, writes: []string{unavailable}, err: "create consumer widgets of stream evenkeel_work: "},
		"nobody makes it":      {found: noConsumer, writes: []string{script.Silence}, err: "create consumer widgets of stream evenkeel_work: no answer"},
		"cannot be looked at":  {found: unavailable, err: "look at consumer widgets of stream evenkeel_work: "},
		"is not answered":      {found: script.Silence, err: "look at consumer widgets of stream evenkeel_work: no answer: "},
		"acks by itself":       {found: consumerConfig(`"ack_policy":"none"`), err: "its ack policy is AckNone, Evenkeel needs AckExplicit", is: ErrStreamSettings},
		"of an earlier one":    {found: consumerConfig(`"ack_policy":"explicit"`), writes: []string{consumerConfig(asItShouldBe)}},
		"which cannot be kept": {found: consumerConfig(`"ack_policy":"explicit"`), writes: []string{unavailable}, err: "from an earlier configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				js, err := jetstream.New(nc)
				require.NoError(t, err)
				s.Answer(consumerInfo, tt.found)
				s.Answer(create, tt.writes...)
				err = ensureConsumer(t.Context(), js, "evenkeel_work", widgetLanes[laneFresh])
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
					if tt.is != nil {
						require.ErrorIs(t, err, tt.is)
					}
				}
				require.Len(t, s.Sent("$JS.API.CONSUMER."), 1+len(tt.writes))
				for _, m := range s.Sent(create) {
					require.Contains(t, string(m.Data), `"filter_subject":"evenkeel.n.widgets.\u003e"`)
					require.Contains(t, string(m.Data), `"max_deliver":-1`, "a message past it would stay unseen")
					require.Contains(t, string(m.Data), `"max_ack_pending":-1`)
				}
			})
		})
	}
}

// An error says that it is not known whether a controller has ever run: a warning that none does would be wrong.
func TestHasConsumerTellsNoneFromNotKnown(t *testing.T) {
	for name, tt := range map[string]struct {
		answer, err string
		want        bool
	}{
		"there":       {answer: consumerConfig(""), want: true},
		"none":        {answer: script.Error(404, 10014, "consumer not found")},
		"no stream":   {answer: noStream},
		"unavailable": {answer: unavailable, err: "look for a consumer of widgets: "},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				s.Answer(consumerInfo, tt.answer)
				got, err := HasConsumer(t.Context(), nc, Config{}, "widgets")
				require.Equal(t, tt.want, got)
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				require.Equal(t, consumerInfo, s.Sent("$JS.API.CONSUMER.")[0].Subject)
			})
		})
	}
}
