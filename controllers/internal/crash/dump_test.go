package crash

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// dump says what the broker holds, for a run that failed: each message (released locks left out), and how far consumers are.
func dump(url string) string {
	nc, err := nats.Connect(url)
	if err != nil {
		return err.Error()
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, stream := range []string{"evenkeel_work", "KV_evenkeel_locks"} {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err.Error()
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "%s is at %d\n", stream, info.State.LastSeq)
		for subject := range info.State.Subjects {
			m, err := s.GetLastMsgForSubject(ctx, subject)
			if err == nil && m.Header.Get("KV-Operation") == "" {
				fmt.Fprintf(&b, "  %d %s %s %v %s\n", m.Sequence, m.Time.Format(time.StampMicro), subject, m.Header, m.Data)
			}
		}
		for c := range s.ListConsumers(ctx).Info() {
			fmt.Fprintf(&b, "  consumer %s delivered %d, acknowledged %d, %d are out, %d wait\n", c.Name, c.Delivered.Stream, c.AckFloor.Stream, c.NumAckPending, c.NumPending)
		}
	}
	return b.String()
}
