// Package notify carries notifications, "look at this object", over NATS JetStream: their subjects and streams, the
// Publisher, and the consuming side.
//
// A notification is a name, never a payload: its receiver reads the object and finds the current state. So any number
// of notifications of one object may become one. The work stream holds at most one per object, and a [Publisher]
// adds one only if none is queued, which keeps the object's place in the queue however often it changes:
//
//	p, err := notify.NewPublisher(nc, notify.Config{})
//	err = p.Publish(ctx, "widgets", "blue", "changed")
//
// The price of "only if none is queued" is an obligation on the consuming side: a [Delivery] must be taken
// ([Delivery.Take]) before the object is read, and Take returns only when the notification is gone from the stream, so
// that a change after the read is queued again. From then on the lock of the object is the record of the work.
//
// A [Consumer] pulls exactly as many notifications as its user has free workers, from two lanes: fresh changes, and
// requeues that came due. [Streams] makes what all of them need on the server.
package notify
