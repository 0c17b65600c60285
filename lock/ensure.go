package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Ensure makes the KV bucket if it is not there. replicas is how many servers hold it, 1 to 5; on an existing bucket
// it is changed if it differs and is not 0. Memory storage would let revisions, and with them fences, start again with
// the server; only tests that throw the server away want it.
func Ensure(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, storage jetstream.StorageType) error {
	want := jetstream.StreamConfig{
		Name:              "KV_" + bucket,
		Description:       "Evenkeel: locks of objects under reconcile, and the sessions that hold them",
		Subjects:          []string{"$KV." + bucket + ".>"},
		Storage:           storage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		FirstSeq:          uint64(time.Now().UnixMicro()),
	}
	have, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil // another replica was quicker, with a clock a little different
		}
		if err != nil {
			return fmt.Errorf("create lock bucket %s: %w", bucket, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at lock bucket %s: %w", bucket, err)
	}
	return adjust(ctx, js, bucket, replicas, have.CachedInfo().Config)
}

func adjust(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, have jetstream.StreamConfig) error {
	if have.MaxMsgsPerSubject != 1 || have.MaxAge != 0 {
		return fmt.Errorf("lock bucket %s: it has history %d and max age %s, want 1 and none: it was made by something else; choose another prefix",
			bucket, have.MaxMsgsPerSubject, have.MaxAge)
	}
	if have.AllowMsgTTL && (replicas == 0 || have.Replicas == replicas) {
		return nil
	}
	have.AllowMsgTTL = true
	if replicas != 0 {
		have.Replicas = replicas
	}
	if _, err := js.UpdateStream(ctx, have); err != nil {
		return fmt.Errorf("update lock bucket %s: %w", bucket, err)
	}
	return nil
}
