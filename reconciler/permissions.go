package reconciler

import "github.com/evenkeel-io/evenkeel/internal/subject"

// Permissions returns the least that the NATS user of a controller needs, as subjects that it may publish and subscribe
// to. Streams, consumers and the lock bucket must then be made by somebody with more rights (one start of a controller
// with an administrator's credentials does). inbox is the connection's inbox prefix (nats.CustomInboxPrefix), empty for
// the default; give each user one of its own, or it may read the answers to others.
//
// clustered says whether NATS is a cluster, for any number of replicas of the streams, which may change.
//
// These rights keep mistakes apart, not attackers: all kinds of a prefix trust each other. With the right to publish
// notifications or schedules of one kind, a user can publish and cancel schedules of any kind, have them fire on any subject
// of the work stream, and empty it (Nats-Rollup: all); with the right to delete messages, delete any. Each time objects are
// looked at too often or too late, by resync, and specs and statuses are out of reach. With the right to write sessions,
// which every controller needs, it can end those of others, so that two functions run until the fence refuses one of them.
// To check where a fired message came from would not help: the same user may publish it. Controllers that must be kept from
// each other need different prefixes.
func Permissions(prefix, inbox string, clustered bool, kinds ...string) (publish, subscribe []string) {
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
	if clustered {
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
			"$KV."+n.LockBucket()+".lock."+subject.ResyncLockKey(kind),
		)
		subscribe = append(subscribe, "$KV."+n.LockBucket()+".lock."+kind+".>")
	}
	return publish, subscribe
}
