package reconciler

import "github.com/evenkeel-io/evenkeel/internal/subject"

// Permissions returns the least that the NATS user of a controller needs, as subjects that it may publish and subscribe
// to. Streams, consumers and the lock bucket must then be made by somebody with more rights (one start of a controller
// with an administrator's credentials does). inbox is the connection's inbox prefix (nats.CustomInboxPrefix), empty for
// the default; give each user one of its own, or it may read the answers to others.
//
// The rights do not keep the kinds of one prefix from each other. Whoever may publish one subject of the work stream can, by the
// headers of a message, have the server publish to every other subject of it, cancel the schedules of other kinds, and delete all of its messages
// (Nats-Rollup: all); whoever may publish the locks of one kind can delete all keys of the lock bucket in the same way. With
// replicated streams, the right to delete messages is one to delete any of the stream's. Controllers that do not trust each other need
// different prefixes, each user with the rights to its own only.
func Permissions(prefix, inbox string, replicated bool, kinds ...string) (publish, subscribe []string) {
	n := subject.Names{Prefix: prefix}
	if inbox == "" {
		inbox = "_INBOX"
	}
	locks := "KV_" + n.LockBucket()
	publish = []string{
		"$JS.API.STREAM.INFO." + n.WorkStream(),
		"$JS.API.STREAM.INFO." + n.HistoryStream(),
		"$JS.API.STREAM.INFO." + locks,
		"$JS.API.STREAM.MSG.GET." + n.WorkStream(),
		"$JS.API.STREAM.MSG.GET." + locks,
		"$KV." + n.LockBucket() + ".session.*",
	}
	if replicated {
		publish = append(publish, "$JS.API.STREAM.MSG.DELETE."+n.WorkStream())
	}
	subscribe = []string{inbox + ".>"}
	for _, kind := range kinds {
		for _, consumer := range []string{kind, kind + "_later"} {
			publish = append(publish,
				"$JS.API.CONSUMER.INFO."+n.WorkStream()+"."+consumer,
				"$JS.API.CONSUMER.MSG.NEXT."+n.WorkStream()+"."+consumer,
				"$JS.ACK."+n.WorkStream()+"."+consumer+".>",
			)
		}
		publish = append(publish,
			n.FilterFresh(kind), n.FilterLater(kind), n.FilterSchedule(kind), n.Aside(kind),
			"$KV."+n.LockBucket()+".lock."+kind+".>",
			"$KV."+n.LockBucket()+".lock.resync."+kind,
		)
		subscribe = append(subscribe, "$KV."+n.LockBucket()+".lock."+kind+".>")
	}
	return publish, subscribe
}
