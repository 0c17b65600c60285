package apitest

import (
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

var deletionRules = []rule{
	{"delete without finalizers removes and notifies", func(s *suite) {
		s.create("blue")
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		s.notified("widgets/blue deleted")
		s.refused(apiclient.ErrNotFound)(s.widgets.Get(s.Context(), "blue"))
		s.equalNames("list", s.names(s.widgets.All(s.Context())))
	}},
	{"delete is in force before it is notified", func(s *suite) {
		s.ok(s.widgets.Create(s.Context(), "blue", widgetSpec{}))
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		s.refused(apiclient.ErrNotFound)(s.widgets.Get(s.Context(), "blue"))
		s.refused(apiclient.ErrNotFound)(s.widgets.Delete(s.Context(), "blue"))
		s.equalNames("list", s.names(s.widgets.All(s.Context())))
		s.equalNames("unsettled", s.names(s.widgets.Unsettled(s.Context(), 0)))
		got := s.Notifications()
		equal(s, "last notification", got[len(got)-1], "widgets/blue deleted")
	}},
	{"delete of what is not there is not found", func(s *suite) {
		s.refused(apiclient.ErrNotFound)(s.widgets.Delete(s.Context(), "blue"))
		s.notified()
	}},
	{"delete with finalizers waits for them", func(s *suite) {
		before := s.finalized("blue", "a", "b")
		w := s.ok(s.widgets.Delete(s.Context(), "blue"))
		s.notified("widgets/blue deleted")
		s.written(w, before)
		equal(s, "has deletedAt", w.DeletedAt != nil, true)
		equal(s, "changedAt is deletedAt", w.ChangedAt.Equal(*w.DeletedAt), true)
		equal(s, "generation", w.Generation, before.Generation+1)
		equal(s, "state", w.Reconciliation.State, apiclient.StateDeleting)
		s.equalNames("finalizers", w.Finalizers, "a", "b")
		s.equalNames("list", s.names(s.widgets.All(s.Context())), "blue")

		w = s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, RemoveFinalizers: []string{"a"}}))
		s.equalNames("finalizers", w.Finalizers, "b")
		s.gone(s.patch(w, apiclient.StatusPatch{Fence: 2, RemoveFinalizers: []string{"b"}}))
		s.refused(apiclient.ErrNotFound)(s.widgets.Get(s.Context(), "blue"))
		s.refused(apiclient.ErrNotFound)(s.patch(w, apiclient.StatusPatch{Fence: 2}))
		s.equalNames("list", s.names(s.widgets.All(s.Context())))
		s.notified()
	}},
	{"delete twice is delete once", func(s *suite) {
		w := s.deleting("blue", "a")
		again := s.ok(s.widgets.Delete(s.Context(), "blue"))
		equal(s, "revision", again.Revision, w.Revision)
		equal(s, "deletedAt stays", again.DeletedAt.Equal(*w.DeletedAt), true)
		s.unchanged(w)
	}},
	{"put on what is being deleted is a conflict without its revision", func(s *suite) {
		w := s.deleting("blue", "a")
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 5}))
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "blue", w.Spec))
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "blue", widgetSpec{}, apiclient.IfRevision(w.Revision-1)))
		s.refused(apiclient.ErrExists)(s.widgets.Create(s.Context(), "blue", widgetSpec{}))
		s.unchanged(w)
	}},
	{"put on what is being deleted holds for who has seen it", func(s *suite) {
		w := s.deleting("blue", "a")
		s.Notifications()
		got := s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 5}, apiclient.IfRevision(w.Revision)))
		s.notified("widgets/blue changed")
		equal(s, "generation", got.Generation, w.Generation+1)
		equal(s, "is being deleted", got.DeletedAt != nil, true)
		equal(s, "state", got.Reconciliation.State, apiclient.StateDeleting)
	}},
	{"no finalizer is added to what is being deleted", func(s *suite) {
		w := s.deleting("blue", "a")
		w = s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, AddFinalizers: []string{"b"}}))
		s.equalNames("finalizers", w.Finalizers, "a")
		s.gone(s.patch(w, apiclient.StatusPatch{Fence: 2, AddFinalizers: []string{"b"}, RemoveFinalizers: []string{"a"}}))
	}},
	{"removing the last finalizer of what is not being deleted leaves it", func(s *suite) {
		w := s.ok(s.patch(s.finalized("blue", "a"), apiclient.StatusPatch{Fence: 2, RemoveFinalizers: []string{"a", "unknown"}}))
		equal(s, "number of finalizers", len(w.Finalizers), 0)
		s.get("blue")
	}},
	{"finalizers are a set", func(s *suite) {
		w := s.finalized("blue", "a", "a")
		w = s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, AddFinalizers: []string{"b", "a"}}))
		slices.Sort(w.Finalizers)
		s.equalNames("finalizers", w.Finalizers, "a", "b")
	}},
	{"a retry of what is being deleted notifies", func(s *suite) {
		s.deleting("blue", "a")
		s.ok(s.widgets.Retry(s.Context(), "blue"))
		s.notified("widgets/blue retry")
	}},
	{"Ready of the generation before the deletion is stored as Deleting", func(s *suite) {
		w := s.deleting("blue", "a")
		w = s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, Reconciliation: &apiclient.Reconciliation{
			State: apiclient.StateReady, ObservedGeneration: w.Generation - 1,
		}}))
		equal(s, "state", w.Reconciliation.State, apiclient.StateDeleting)
	}},
}
