package workload

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// One watch serves all instances, and sees only what bears their label.
func TestOneWatchIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.put(t, mapResource, configMap("ours", "i"))
		s.put(t, mapResource, configMap("theirs", ""))
		for _, name := range []string{"ours", "theirs", "ours"} {
			found, err := s.watches.get(t.Context(), mapResource, "home", name)
			require.NoError(t, err)
			require.Equal(t, name == "ours", found != nil, name)
		}
		synctest.Wait()
		lists, watches := s.did("list", "configmaps"), s.did("watch", "configmaps")
		require.Len(t, lists, 1)
		require.Len(t, watches, 1)
		require.Equal(t, LabelInstance, lists[0].(kubetesting.ListActionImpl).ListOptions.LabelSelector)
		require.Equal(t, LabelInstance, watches[0].(kubetesting.WatchActionImpl).ListOptions.LabelSelector)
	})
}

// A watch tells of changes and of what has gone, in the name of the instance that it bore, and of nothing twice.
func TestWatchTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		u := s.put(t, mapResource, configMap("m", "i"))
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, s.told, "what is there is no news")
		changed := s.put(t, mapResource, u.DeepCopy())
		synctest.Wait()
		require.Equal(t, []string{"i: ConfigMap m in home changed"}, s.told)
		require.NoError(t, s.fake.Tracker().Update(mapResource, changed.DeepCopy(), "home"))
		synctest.Wait()
		require.Len(t, s.told, 1, "its version is the same")
		require.NoError(t, s.fake.Tracker().Delete(mapResource, "home", "m"))
		synctest.Wait()
		require.Equal(t, []string{"i: ConfigMap m in home changed", "i: ConfigMap m in home is gone"}, s.told)

		s.watches.tell(cache.DeletedFinalStateUnknown{Key: "home/m", Obj: look(configMap("m", "missed"))}, nil)
		s.watches.tell(look(configMap("m", "")), nil)
		require.Equal(t, []string{"missed: ConfigMap m in home is gone"}, s.told[2:], "what has no label is nobody's")
	})
}

// A watch that cannot be opened is told of at once, and not when its time is over.
func TestWatchThatCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.fails("list", "configmaps", func() error { return errCut })
		began := time.Now()
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.ErrorIs(t, err, errCut)
		require.ErrorContains(t, err, "watch configmaps: ")
		require.Less(t, time.Since(began), time.Second)
	})
}

// Whoever waits for a watch that is closed, because its runtime has gone, say, does not wait in vain.
func TestWatchThatIsClosedIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		asked := make(chan struct{})
		s.fails("list", "configmaps", func() error {
			close(asked)
			<-s.watches.ctx.Done()
			return context.Cause(s.watches.ctx)
		})
		began := time.Now()
		go func() {
			<-asked
			s.watches.close()
		}()
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, time.Since(began), time.Second)
		require.False(t, unreachable(err), "the cluster has nothing to do with it")
	})
}

// R39: what a watch knew is not believed any more when it has not been open for a while.
func TestWatchThatEndsIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.put(t, mapResource, configMap("m", "i"))
		cut := s.cuts("configmaps")
		open := make(chan *apiwatch.FakeWatcher, 1)
		s.fake.PrependWatchReactor("configmaps", func(kubetesting.Action) (bool, apiwatch.Interface, error) {
			if cut.Load() {
				return true, nil, errCut
			}
			w := apiwatch.NewFake()
			open <- w
			return true, w, nil
		})
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		cut.Store(true)
		(<-open).Stop()
		time.Sleep(believed / 2)
		found, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		require.NotNil(t, found)
		time.Sleep(believed)
		_, err = s.watches.get(t.Context(), mapResource, "home", "m")
		require.ErrorIs(t, err, errCut)
	})
}

// A kind that is no more served is forgotten, so that a later look sees it when it is back.
func TestWatchOfAKindThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		var back atomic.Bool
		s.fails("list", "baskets", func() error {
			if !back.Load() {
				return apierrors.NewNotFound(basketResource.GroupResource(), "")
			}
			return nil
		})
		_, err := s.watches.get(t.Context(), basketResource, "home", "b")
		require.True(t, isGone(err), err)
		synctest.Wait()
		require.Empty(t, s.watches.of)
		asked := len(s.did("list", "baskets"))
		time.Sleep(time.Hour)
		require.Len(t, s.did("list", "baskets"), asked, "nobody asks for it any more")

		back.Store(true)
		s.put(t, basketResource, resource("shop.example.com/v1", "Basket", "home", "b", "i"))
		found, err := s.watches.get(t.Context(), basketResource, "home", "b")
		require.NoError(t, err)
		require.NotNil(t, found)
		s.watches.drop(basketResource, &watch{end: func() {}})
		require.Len(t, s.watches.of, 1, "the news of an older one is none of this one")
	})
}

// When a cluster is back, watches that could not be opened are opened anew, and the others go on.
func TestWatchesAreRenewedWhenTheClusterIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		down := s.cuts("pods")
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		down.Store(true)
		_, err = s.watches.get(t.Context(), podResource, "home", "p")
		require.ErrorIs(t, s.note(err), errCut)
		synctest.Wait()
		healthy, failing := s.watches.of[mapResource], s.watches.of[podResource]
		down.Store(false)
		require.NoError(t, s.note(nil))
		synctest.Wait()
		require.Same(t, healthy, s.watches.of[mapResource])
		require.False(t, healthy.informer.IsStopped())
		require.True(t, failing.informer.IsStopped())
		began := time.Now()
		_, err = s.watches.get(t.Context(), podResource, "home", "p")
		require.NoError(t, err)
		require.Less(t, time.Since(began), time.Second)
		require.Len(t, s.did("watch", "configmaps"), 1)
	})
}

// What has changed while a watch could not be opened the next one cannot tell: all are looked at that have something in it.
func TestInstancesHearWhenAWatchIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.put(t, mapResource, configMap("m", "i"))
		s.put(t, podResource, resource("v1", "Pod", "home", "p", "other"))
		_, err := s.watches.get(t.Context(), podResource, "home", "p")
		require.NoError(t, err)
		_, err = s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		synctest.Wait()
		s.watches.of[mapResource].note(errCut)
		require.ErrorIs(t, s.note(errCut), errCut)
		require.NoError(t, s.note(nil))
		synctest.Wait()
		require.Equal(t, []string{"i: the cluster of ConfigMap m in home answers again"}, s.told)
	})
}

// A cluster that is down is left alone, but for who asks whether it is back, and until somebody is to ask.
func TestClusterThatIsDownIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h health
		require.NoError(t, h.isDown())
		h.note(errCut)
		require.ErrorIs(t, h.isDown(), errCut)
		h.looking = true
		require.NoError(t, h.isDown())
		h.looking = false
		time.Sleep(downFor)
		require.NoError(t, h.isDown())
	})
}

// Closing waits until all watches have ended, and none is opened afterwards.
func TestClosedWatchesHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		w := s.watches.of[mapResource]
		s.close()
		require.True(t, w.informer.IsStopped())
		_, err = s.watches.get(t.Context(), podResource, "home", "p")
		require.EqualError(t, err, "the connection to the cluster was closed")
	})
}

// Of the managers of a resource the latest is named first; those of its status are not, and an update under our name is not
// what we applied.
func TestManagersAreTold(t *testing.T) {
	at := func(minute int) *metav1.Time {
		return &metav1.Time{Time: time.Date(2001, 2, 3, 4, minute, 0, 0, time.UTC)}
	}
	apply, update := metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	fields := func(text string) *metav1.FieldsV1 { return metav1.NewFieldsV1(text) }
	u := configMap("m", "i")
	applied := metav1.ManagedFieldsEntry{Manager: fieldManager, Operation: apply, Time: at(1), FieldsV1: fields(`{"f:data":{}}`)}
	ours := stamp(u, &applied)
	u.SetManagedFields([]metav1.ManagedFieldsEntry{
		applied,
		{Manager: "first", Operation: update, Time: at(2), FieldsV1: fields(`{}`)},
		{Manager: "last", Operation: apply, Time: at(4), FieldsV1: fields(`{}`)},
		{Manager: fieldManager, Operation: update, Time: at(3), FieldsV1: fields(`{"f:metadata":{}}`)},
		{Manager: fieldManager, Operation: apply, Subresource: "status", Time: at(5), FieldsV1: fields(`{"f:status":{}}`)},
		{Manager: "kubelet", Operation: update, Subresource: "status", Time: at(6), FieldsV1: fields(`{"f:status":{}}`)},
	})
	s := look(u)
	require.Equal(t, ours, s.fields)
	require.Equal(t, []string{"last", fieldManager, "first"}, s.others)
	require.Equal(t, "it was changed by last", changedBy(s))
	require.Equal(t, "it was changed", changedBy(&seen{}))
}

// What is large and not looked at is not kept; what kstatus looks at is.
func TestSpecsAreKeptOfWhatIsLookedAt(t *testing.T) {
	spec := func() map[string]any {
		return map[string]any{"replicas": int64(3), "template": map[string]any{"x": "y"}, "jobTemplate": map[string]any{"x": "y"}, "volumeClaimTemplates": []any{"x"}}
	}
	for apiVersion, want := range map[string]any{
		"apps/v1":                 map[string]any{"replicas": int64(3)},
		"v1":                      map[string]any{"replicas": int64(3)},
		"networking.k8s.io/v1":    map[string]any{"replicas": int64(3)},
		"shop.example.com/v1":     nil,
		"apiextensions.k8s.io/v1": nil,
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": "X", "spec": spec()}}
		require.Equal(t, want, look(u).Object["spec"], apiVersion)
	}
}

// An error is the cluster's if nobody has answered, or if our credentials are not taken.
func TestWhatIsTheClustersFault(t *testing.T) {
	resource := mapResource.GroupResource()
	for text, c := range map[string]struct {
		err  error
		want bool
	}{
		"unauthorized":  {apierrors.NewUnauthorized("who are you"), true},
		"forbidden":     {apierrors.NewForbidden(resource, "m", errors.New("no")), false},
		"one API":       {apierrors.NewServiceUnavailable("its server is down"), false},
		"internal":      {apierrors.NewInternalError(errors.New("a webhook")), false},
		"refused":       {errCut, true},
		"no answer":     {errNoAnswer, true},
		"in a request":  {&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: errors.New("EOF")}, true},
		"timeout":       {&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: context.DeadlineExceeded}, true},
		"stopped by us": {&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: context.Canceled}, false},
		"something":     {errors.New("something"), false},
	} {
		require.Equal(t, c.want, unreachable(c.err), text)
	}
}

// A cluster is silent for as long as it answers none of its requests: that new ones are sent, or that some end without an answer,
// is no answer.
func TestSilenceIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a answers
		outcome := make(chan error)
		over := a.over(roundTrip(func(*http.Request) (*http.Response, error) { return nil, <-outcome }))
		for range 5 {
			go func() {
				_, err := over.RoundTrip(httptest.NewRequest(http.MethodGet, "https://192.0.2.1", nil))
				_ = err // as it was sent
			}()
			time.Sleep(time.Second)
		}
		require.Equal(t, 5*time.Second, a.silent())
		outcome <- errCut
		synctest.Wait()
		require.Equal(t, 5*time.Second, a.silent())
		outcome <- nil
		synctest.Wait()
		require.Zero(t, a.silent())
		time.Sleep(time.Second)
		require.Equal(t, time.Second, a.silent())
		for range 3 {
			outcome <- errCut
		}
		synctest.Wait()
		require.Zero(t, a.silent(), "there is nothing to answer")
	})
}
