package workload_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// hook is a server of one admission webhook, which the API server calls over TLS.
type hook struct {
	t      *testing.T
	admit  func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse
	calls  atomic.Int64
	addr   string
	server *httptest.Server
}

func serveHook(t *testing.T, admit func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) *hook {
	t.Helper()
	h := &hook{t: t, admit: admit, addr: "127.0.0.1:0"}
	h.up()
	t.Cleanup(h.down)
	return h
}

// up starts the server, where it was before.
func (h *hook) up() {
	h.t.Helper()
	h.server = httptest.NewUnstartedServer(h)
	require.NoError(h.t, h.server.Listener.Close())
	var err error
	h.server.Listener, err = net.Listen("tcp", h.addr)
	require.NoError(h.t, err)
	h.addr = h.server.Listener.Addr().String()
	h.server.StartTLS()
}

func (h *hook) down() {
	h.server.CloseClientConnections()
	h.server.Close()
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.calls.Add(1)
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = h.admit(review.Request)
	review.Response.UID = review.Request.UID
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server may have given up
}

// configuration is the document that has the API server call the webhook for resources of an instance.
func (h *hook) configuration(kind, instance, operations, resources string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
	return fmt.Sprintf(`
---
apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata: {name: hook-of-%s}
webhooks:
- name: hook.example.com
  clientConfig: {url: "https://%s/", caBundle: %s}
  rules: [{apiGroups: ["", apps], apiVersions: [v1], operations: [%s], resources: [%s]}]
  objectSelector: {matchLabels: {%s: %s}}
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 15
`, kind, instance, h.addr, base64.StdEncoding.EncodeToString(ca), operations, resources, workload.LabelInstanceName, instance)
}

// configure has the cluster know a configuration that is nobody's, until forget.
func (h *hook) configure(kube *kubetest.Cluster, configuration string) (forget func()) {
	h.t.Helper()
	ctx := h.t.Context()
	require.NoError(h.t, kube.Apply(ctx, configuration))
	all := kube.Client().AdmissionregistrationV1()
	name := "hook-of-" + strings.SplitN(strings.SplitN(configuration, "hook-of-", 2)[1], "}", 2)[0]
	return func() {
		h.t.Helper()
		if strings.Contains(configuration, "kind: Mutating") {
			require.NoError(h.t, all.MutatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{}))
		} else {
			require.NoError(h.t, all.ValidatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{}))
		}
	}
}

func allowed(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

func refused(why string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: why}}
}

// pulling changes what a deployment says of its own, and adds what it does not say.
func pulling(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	var d appsv1.Deployment
	if err := json.Unmarshal(r.Object.Raw, &d); err != nil {
		return refused(err.Error())
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	ops := []op{
		{"add", "/metadata/labels/hooked", "yes"},
		{"replace", "/spec/template/spec/containers/0/imagePullPolicy", "Always"},
		{"add", "/spec/template/spec/priorityClassName", "system-node-critical"},
	}
	if d.Annotations == nil {
		ops = append(ops, op{"add", "/metadata/annotations", map[string]string{}})
	}
	ops = append(ops, op{"add", "/metadata/annotations/hooked", "yes"})
	patch, err := json.Marshal(ops)
	if err != nil {
		return refused(err.Error())
	}
	return &admissionv1.AdmissionResponse{Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: patch}
}

var pulled = strings.Replace(web, "image: example.com/web:1", "image: example.com/web:1, imagePullPolicy: IfNotPresent", 1)

// What a webhook changes is neither drift nor a reason to apply again, whether it was there before the instance or belongs to
// it, and for a replica that has not seen the instance before.
func TestMutatingWebhookIsNoDrift(t *testing.T) {
	kube := kubetest.Start(t)
	for name, own := range map[string]bool{"there-already": false, "of-the-instance": true} {
		t.Run(name, func(t *testing.T) {
			before, err := kube.Objects(t.Context())
			require.NoError(t, err)
			i := install(t, 0)
			stop := i.start("first")
			i.cluster("main")
			h := serveHook(t, pulling)
			configuration := h.configuration("Mutating", name, "CREATE, UPDATE", "deployments")
			if own {
				i.define(name, pulled+configuration)
				in := i.ready(name)
				i.inForce(h, in)
				_, err := i.instances.Patch(t.Context(), name, map[string]any{"labels": map[string]string{"a": "b"}})
				require.NoError(t, err)
				i.ready(name)
			} else {
				defer h.configure(kube, configuration)()
				i.define(name, pulled)
			}
			in := i.ready(name)
			generation := i.hooked(in)
			i.settled(h, in)
			stop()
			i.start("second")
			in = i.retried(name)
			require.Equal(t, generation, i.hooked(in))
			i.settled(h, in)

			deployments := kube.Client().AppsV1().Deployments(in.Status.Namespace)
			_, err = deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{FieldManager: "a-hand"})
			require.NoError(t, err)
			in = i.until(name, func(in *workload.Instance) bool { return in.Ready() && len(in.Status.Drift) > 0 })
			require.Len(t, in.Status.Drift, 1)
			require.Equal(t, "it was changed by a-hand", in.Status.Drift[0].What)
			i.hooked(in)
			i.settled(h, in)
			i.remove(name)
			if own { // else it goes after this
				untouched(t, kube, before)
			}
		})
	}
}

// inForce waits until the API server calls a webhook for an instance's deployment: it hears of one some moments after it was
// configured.
func (i *installation) inForce(h *hook, in *workload.Instance) {
	i.Helper()
	deployments := kubetest.Start(i.TB).Client().AppsV1().Deployments(in.Status.Namespace)
	i.eventually(func() string {
		_, err := deployments.Patch(i.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(i, err)
		if h.calls.Load() == 0 {
			return "the webhook is not called"
		}
		return ""
	})
}

// hooked checks that a deployment is as the webhook pulling wants it, and returns its generation.
func (i *installation) hooked(in *workload.Instance) int64 {
	i.Helper()
	d, err := kubetest.Start(i.TB).Client().AppsV1().Deployments(in.Status.Namespace).Get(i.Context(), "web", metav1.GetOptions{})
	require.NoError(i, err)
	require.Equal(i, "yes", d.Labels["hooked"])
	require.Equal(i, "yes", d.Annotations["hooked"])
	require.Equal(i, "Always", string(d.Spec.Template.Spec.Containers[0].ImagePullPolicy))
	require.Equal(i, "system-node-critical", d.Spec.Template.Spec.PriorityClassName)
	return d.Generation
}

// settled checks that an instance is left alone however often it is reconciled: nothing is sent that a webhook would see, and
// nothing is told of drift that was not told before.
func (i *installation) settled(h *hook, in *workload.Instance) {
	i.Helper()
	calls := h.calls.Load()
	for range 3 {
		now := i.retried(in.Name)
		require.Equal(i, in.Status.Drift, now.Status.Drift)
	}
	require.Equal(i, calls, h.calls.Load())
}

// A refusal shows in the webhook's words, and heals when the webhook is gone. What it does not concern is not held up.
func TestRefusalOfWebhookIsTold(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	i := install(t, 1)
	i.cluster("main")
	h := serveHook(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if r.Name == "evil" {
			return refused("no evil in this house")
		}
		return allowed(r)
	})
	forget := h.configure(kube, h.configuration("Validating", "tempted", "CREATE", "configmaps"))
	const evil = "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: evil}\n"
	i.define("tempted", paint+evil)
	in := i.until("tempted", func(in *workload.Instance) bool {
		return in != nil && strings.Contains(in.Status.Waiting, "no evil in this house") && in.Status.Ready == "2/3"
	})
	require.Contains(t, in.Reconciliation.LastError, `ConfigMap evil in `+in.Status.Namespace+`: admission webhook "hook.example.com" denied the request: no evil in this house`)
	i.define("saint", paint+evil) // the webhook is not for it
	i.ready("saint")
	forget()
	in = i.ready("tempted")
	require.Equal(t, "3/3", in.Status.Ready)
	require.Empty(t, in.Status.Drift)
	i.remove("tempted")
	i.remove("saint")
}

// A webhook that does not answer delays what it is asked about, and the instance says why. The cluster is not taken for one
// that does not answer.
func TestWebhookThatIsDownDelays(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	i := install(t, 1)
	i.cluster("main")
	h := serveHook(t, allowed)
	forget := h.configure(kube, h.configuration("Validating", "delayed", "CREATE, UPDATE, DELETE", "configmaps"))
	h.down()
	i.define("delayed", paint)
	in := i.until("delayed", func(in *workload.Instance) bool {
		return in != nil && in.Reconciliation.State == apiclient.StateRetrying && in.Reconciliation.Failures > 1
	})
	require.Contains(t, in.Reconciliation.LastError, `failed calling webhook "hook.example.com"`)
	require.Contains(t, in.Status.Waiting, "connection refused")
	for _, beside := range []string{"beside-a", "beside-b", "beside-c"} {
		i.define(beside, paint)
		i.ready(beside)
	}
	r, err := i.runtimes.Get(t.Context(), "main")
	require.NoError(t, err)
	require.True(t, r.Status.Healthy, r.Status.Message)
	in, err = i.instances.Get(t.Context(), "delayed")
	require.NoError(t, err)
	require.False(t, in.Ready())
	h.up()
	i.ready("delayed")

	h.down() // its deletion is delayed, too, as long as nobody can be asked about it
	_, err = i.instances.Delete(t.Context(), "delayed")
	require.NoError(t, err)
	i.until("delayed", func(in *workload.Instance) bool {
		return strings.Contains(in.Reconciliation.LastError, `failed calling webhook "hook.example.com"`)
	})
	i.remove("beside-a")
	h.up()
	i.until("delayed", func(in *workload.Instance) bool { return in == nil })
	forget()
	i.remove("beside-b")
	i.remove("beside-c")
}

// An instance's own webhook is not in the way of its deletion, even if it refuses all and its server is part of what goes.
func TestOwnWebhookGoesFirst(t *testing.T) {
	kube := kubetest.Start(t)
	before, err := kube.Objects(t.Context())
	require.NoError(t, err)
	i := install(t, 1)
	i.cluster("main")
	h := serveHook(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { return refused("nothing may go") })
	for name, down := range map[string]bool{"refusing": false, "down": true} {
		i.define(name, paint+h.configuration("Validating", name, "DELETE", "configmaps"))
		in := i.ready(name)
		i.eventually(func() string { // the API server has heard of the webhook
			err := kube.Client().CoreV1().ConfigMaps(in.Status.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil {
				return "it may go"
			}
			return ""
		})
		if down {
			h.down()
		}
		i.remove(name)
	}
	untouched(t, kube, before)
}

// A definition gets rid of a webhook of its own that refuses every change of it.
func TestOwnWebhookThatRefusesAllIsPruned(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	i := install(t, 1)
	i.cluster("main")
	h := serveHook(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return refused("nothing may change")
	})
	i.define("closed", paint+h.configuration("Validating", "closed", "UPDATE", "configmaps"))
	in := i.ready("closed")
	i.eventually(func() string {
		_, err := kube.Client().CoreV1().ConfigMaps(in.Status.Namespace).Patch(t.Context(), "web", types.MergePatchType,
			[]byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return "it may be changed"
		}
		return ""
	})
	_, err := i.definitions.Patch(t.Context(), "closed", map[string]any{"manifests": strings.Replace(paint, "blue", "red", 1)})
	require.NoError(t, err)
	i.until("closed", func(in *workload.Instance) bool { return in.Ready() && in.Status.DefinitionGeneration == 2 })
	i.remove("closed")
}
