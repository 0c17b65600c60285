package reconciler

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An operator gives a controller these rights: what is missing breaks it, and what is too much opens other kinds to it.
func TestPermissionsAreTheLeast(t *testing.T) {
	publish, subscribe := Permissions("p", "", false, "jobs")
	require.ElementsMatch(t, []string{
		"$JS.API.STREAM.INFO.p_work", "$JS.API.STREAM.INFO.p_history", "$JS.API.STREAM.INFO.KV_p_locks",
		"$JS.API.STREAM.MSG.GET.p_work", "$JS.API.STREAM.MSG.GET.KV_p_locks",
		"$KV.p_locks.session.*", "$KV.p_locks.lock.jobs.>", "$KV.p_locks.lock.resync.jobs",
		"$JS.API.CONSUMER.INFO.p_work.jobs", "$JS.API.CONSUMER.MSG.NEXT.p_work.jobs", "$JS.ACK.p_work.jobs.>",
		"$JS.API.CONSUMER.INFO.p_work.jobs_later", "$JS.API.CONSUMER.MSG.NEXT.p_work.jobs_later", "$JS.ACK.p_work.jobs_later.>",
		"p.n.jobs.>", "p.r.jobs.>", "p.s.jobs.>", "p.x.jobs",
	}, publish)
	require.ElementsMatch(t, []string{"_INBOX.>", "$KV.p_locks.lock.jobs.>"}, subscribe)

	more, inbox := Permissions("p", "_INBOX_c", true, "jobs", "trees")
	require.Subset(t, more, publish)
	require.Contains(t, more, "$JS.API.STREAM.MSG.DELETE.p_work", "for clusters")
	require.Contains(t, more, "$KV.p_locks.lock.resync.trees")
	require.Len(t, more, 6+1+12*2, "for each kind the same")
	require.ElementsMatch(t, []string{"_INBOX_c.>", "$KV.p_locks.lock.jobs.>", "$KV.p_locks.lock.trees.>"}, inbox)
}
