package lock

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// made is the bucket as Ensure makes it and the server keeps it.
func made(change func(*jetstream.StreamConfig)) string {
	c := jetstream.StreamConfig{
		Name: "KV_b", Description: "Evenkeel: locks", Subjects: []string{"$KV.b.>"}, Replicas: 1, MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DenyDelete: true, AllowDirect: true, AllowMsgTTL: true,
	}
	if change != nil {
		change(&c)
	}
	b, _ := json.Marshal(map[string]any{"config": c, "state": map[string]any{}, "created": script.Time})
	return string(b)
}

// A bucket that is right is left alone; what locks depend on is set right or is an error that names the bucket; limits are
// taken off if that is allowed.
func TestEnsure(t *testing.T) {
	const create, update = "$JS.API.STREAM.CREATE.", "$JS.API.STREAM.UPDATE."
	fine := made(nil)
	noTTL := made(func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false })
	limited := made(func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 })
	inUse := script.Error(400, 10058, "stream name already in use")
	no := script.Error(400, 10052, "no")
	const need = " (Evenkeel needs nats-server 2.12 or later; this one is 2.15.2)"
	for name, tt := range map[string]struct {
		replicas int
		found    []string
		creates  []string
		updates  []string
		err      string
		within   time.Duration
	}{
		"is right":            {found: []string{fine}},
		"made":                {found: []string{noStream}, creates: []string{fine}},
		"made for three":      {replicas: 3, found: []string{noStream}, creates: []string{made(func(c *jetstream.StreamConfig) { c.Replicas = 3 })}},
		"another was quicker": {found: []string{noStream, fine}, creates: []string{inUse}},
		"and is gone again":   {found: []string{noStream, unavailable}, creates: []string{inUse}, err: "create lock bucket b: "},
		"cannot be made":      {found: []string{noStream}, creates: []string{no}, err: "create lock bucket b: nats: API error: code=400 err_code=10052 description=no" + need},
		"its making is not answered": {
			found: []string{noStream}, creates: []string{script.Silence}, err: "create lock bucket b: no answer: ", within: jsapi.Timeout,
		},
		"cannot be looked at":           {found: []string{unavailable}, err: "look at lock bucket b: "},
		"is not answered":               {found: []string{script.Silence}, err: "look at lock bucket b: no answer: ", within: jsapi.Timeout},
		"has no times to live":          {found: []string{noTTL}, updates: []string{fine}},
		"and cannot have them":          {found: []string{noTTL}, updates: []string{noTTL}, err: "lock bucket b: the server did not turn on times to live of messages"},
		"and may not be given them":     {found: []string{noTTL}, updates: []string{no}, err: "update lock bucket b: nats: API error: code=400 err_code=10052 description=no" + need},
		"can be rolled up":              {found: []string{made(func(c *jetstream.StreamConfig) { c.AllowRollup = true })}, updates: []string{fine}},
		"is to be on three":             {replicas: 3, found: []string{fine}, updates: []string{fine}},
		"is on three, asked for":        {replicas: 3, found: []string{made(func(c *jetstream.StreamConfig) { c.Replicas = 3 })}},
		"is on three, not asked for":    {found: []string{made(func(c *jetstream.StreamConfig) { c.Replicas = 3 })}},
		"has limits":                    {found: []string{limited}, updates: []string{fine}},
		"which nobody may take off":     {found: []string{limited}, updates: []string{no}},
		"which nobody hears":            {found: []string{limited}, updates: []string{script.Silence}, within: jsapi.LimitsWithin},
		"has an age, and is ours":       {found: []string{made(func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })}, updates: []string{fine}},
		"has no description, but fits":  {found: []string{made(func(c *jetstream.StreamConfig) { c.Description = "" })}},
		"was made by something else":    {found: []string{made(func(c *jetstream.StreamConfig) { c.Description, c.MaxMsgsPerSubject = "mine", 5 })}, err: "lock bucket b: it has history 5 and max age 0s"},
		"of something else, and passes": {found: []string{made(func(c *jetstream.StreamConfig) { c.Description, c.MaxAge = "mine", time.Hour })}, err: "choose another prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				js, err := jetstream.New(l.nc)
				require.NoError(t, err)
				s.Answer(streamInfoOf, tt.found...)
				s.Answer(create, tt.creates...)
				s.Answer(update, tt.updates...)
				begun := time.Now()
				err = Ensure(t.Context(), js, "b", tt.replicas, jetstream.MemoryStorage)
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				require.Equal(t, tt.within, time.Since(begun))
				require.Len(t, s.Sent(create), len(tt.creates))
				require.Len(t, s.Sent(update), len(tt.updates))
				for _, m := range s.Sent(create) {
					require.Contains(t, string(m.Data), fmt.Sprintf(`"num_replicas":%d`, max(1, tt.replicas)))
				}
				for _, m := range s.Sent(update) {
					var c jetstream.StreamConfig
					require.NoError(t, json.Unmarshal(m.Data, &c))
					require.True(t, c.AllowMsgTTL && !c.AllowRollup)
					require.Empty(t, jsapi.Limits(c))
					require.Equal(t, max(1, tt.replicas), c.Replicas)
				}
			})
		})
	}
}

// A key that is not the only one of its kind, or gone without its holder, is no lock.
func TestEnsureMakesABucketForLocks(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		js, err := jetstream.New(l.nc)
		require.NoError(t, err)
		s.Answer(streamInfoOf, noStream)
		s.Answer("$JS.API.STREAM.CREATE.", made(nil))
		require.NoError(t, Ensure(t.Context(), js, "b", 0, jetstream.FileStorage))
		var c jetstream.StreamConfig
		require.NoError(t, json.Unmarshal(s.Sent("$JS.API.STREAM.CREATE.KV_b")[0].Data, &c))
		require.Equal(t, []string{"$KV.b.>"}, c.Subjects)
		require.Contains(t, c.Description, "Evenkeel: ")
		require.Equal(t, jetstream.FileStorage, c.Storage)
		require.Equal(t, 1, c.Replicas)
		require.EqualValues(t, 1, c.MaxMsgsPerSubject)
		require.Equal(t, jetstream.DiscardNew, c.Discard)
		require.True(t, c.DenyDelete && c.AllowDirect && c.AllowMsgTTL)
		require.EqualValues(t, time.Now().UnixMicro(), c.FirstSeq, "a bucket that is made again goes on above every fence")
	})
}
