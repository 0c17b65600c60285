package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// descriptionPrefix begins the description of a bucket that Ensure made.
const descriptionPrefix = "Evenkeel: "

// Ensure makes the KV bucket if it is not there, and takes limits off that remove or refuse locks (max_msgs, max_bytes,
// max_age, max_msg_size); those that the account requires, or that the user may not take off, stay, and a Locker reports
// them to Config.OnError. replicas is how many servers hold it, 1 to 5; on an existing bucket it is changed if it differs
// and is not 0. Memory storage would let revisions, and with them fences, start again with the server; only tests that
// throw the server away want it.
func Ensure(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, storage jetstream.StorageType) error {
	want := jetstream.StreamConfig{
		Name:              "KV_" + bucket,
		Description:       descriptionPrefix + "locks of objects under reconcile, and the sessions that hold them",
		Subjects:          []string{"$KV." + bucket + ".>"},
		Storage:           storage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		DenyDelete:        true,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		FirstSeq:          uint64(time.Now().UnixMicro()),
	}
	have, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		have, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			have, err = js.Stream(ctx, want.Name) // another replica was quicker, with a clock a little different
		}
		if err != nil {
			return fmt.Errorf("create lock bucket %s: %w%s", bucket, jsapi.Unanswered(js.Conn(), want.Name, err), tooOld(js))
		}
	}
	if err != nil {
		return fmt.Errorf("look at lock bucket %s: %w", bucket, jsapi.Unanswered(js.Conn(), want.Name, err))
	}
	return adjust(ctx, js, bucket, replicas, have.CachedInfo().Config)
}

func adjust(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, have jetstream.StreamConfig) error {
	if !strings.HasPrefix(have.Description, descriptionPrefix) && (have.MaxMsgsPerSubject != 1 || have.MaxAge != 0) {
		return fmt.Errorf("lock bucket %s: it has history %d and max age %s, want 1 and none: it was made by something else; choose another prefix",
			bucket, have.MaxMsgsPerSubject, have.MaxAge)
	}
	needed := !have.AllowMsgTTL || have.AllowRollup || replicas != 0 && have.Replicas != replicas
	found, _ := limits(have)
	if !needed && found == "" {
		return nil
	}
	if !needed { // it works as it is, and a Locker reports the limits
		ctx, cancel := context.WithTimeout(ctx, jsapi.LimitsWithin)
		defer cancel()
		_, _ = jsapi.UpdateStream(ctx, js, have, unlimited(have, replicas))
		return nil
	}
	got, err := jsapi.UpdateStream(ctx, js, have, unlimited(have, replicas))
	if err != nil {
		return fmt.Errorf("update lock bucket %s: %w%s", bucket, err, tooOld(js))
	}
	if !got.AllowMsgTTL {
		return fmt.Errorf("lock bucket %s: the server did not turn on times to live of messages, so locks of dead processes would stay for ever%s",
			bucket, tooOld(js))
	}
	return nil
}

// tooOld adds to an error what may be behind it.
func tooOld(js jetstream.JetStream) string {
	return fmt.Sprintf(" (Evenkeel needs nats-server %s or later; this one is %s)", jsapi.LeastServer, js.Conn().ConnectedServerVersion())
}
