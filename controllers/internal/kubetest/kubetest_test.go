package kubetest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// roleEnv makes the test binary a process that starts a cluster, says where it is, and waits to be killed.
const roleEnv = "EVENKEEL_KUBETEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		c, err := New()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(c.folder)
		select {}
	}
	code := m.Run()
	Stop()
	os.Exit(code)
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %s}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {%s}}
    spec:
      containers: [{name: web, image: example.com/web}]
`

// available waits until a Deployment is.
func available(ctx context.Context, t *testing.T, client kubernetes.Interface, namespace, name string) {
	t.Helper()
	require.NoError(t, eventually(ctx, func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue && d.Status.ObservedGeneration == d.Generation {
				return nil
			}
		}
		return fmt.Errorf("%s is not available: %+v", name, d.Status)
	}))
}

func TestClusterBringsUpDeployments(t *testing.T) {
	c := Start(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	require.NoError(t, c.Apply(ctx, fmt.Sprintf(deployment, namespace, "")))
	available(ctx, t, c.Client(), namespace, "web")

	pods, err := c.Client().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, pods.Items, 2)
	for _, p := range pods.Items {
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.NotEmpty(t, p.Spec.NodeName)
		require.NotEmpty(t, p.Status.PodIP)
	}
	version, err := c.Client().Discovery().ServerVersion()
	require.NoError(t, err)
	require.Equal(t, []string{"v1.36.3", "1", "36"}, []string{version.GitVersion, version.Major, version.Minor})
}

func TestClusterHoldsPods(t *testing.T) {
	c := Start(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	require.NoError(t, c.Apply(ctx, fmt.Sprintf(deployment, namespace, HoldAnnotation+`: "yes"`)))
	pods := c.Client().CoreV1().Pods(namespace)
	var held []corev1.Pod
	require.NoError(t, eventually(ctx, func(ctx context.Context) error {
		found, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if held = found.Items; len(held) < 2 || held[0].Spec.NodeName == "" || held[1].Spec.NodeName == "" {
			return fmt.Errorf("not scheduled: %+v", held)
		}
		return nil
	}))
	// kwok takes pods one after the other: when it is done with a later one, it has passed over these.
	other := c.Namespace(t)
	require.NoError(t, c.Apply(ctx, fmt.Sprintf(deployment, other, "")))
	available(ctx, t, c.Client(), other, "web")
	for _, p := range held {
		now, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, corev1.PodPending, now.Status.Phase)
		free := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: null}}}`, HoldAnnotation)
		_, err = pods.Patch(ctx, p.Name, types.MergePatchType, free, metav1.PatchOptions{})
		require.NoError(t, err)
	}
	available(ctx, t, c.Client(), namespace, "web")
}

const account = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: controller, namespace: %[1]s}
---
# The same account may read nodes, and write settings in its namespace.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: nodes-of-%[1]s}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list]}
- {nonResourceURLs: [/healthz], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nodes-of-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nodes-of-%[1]s}
subjects: [{kind: ServiceAccount, name: controller, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: settings, namespace: %[1]s}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, create]}
- {apiGroups: [""], resources: [secrets], resourceNames: [own], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: settings, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: settings}
subjects: [{kind: ServiceAccount, name: controller, namespace: %[1]s}]
`

func TestClusterServiceAccountMayDoWhatItsRolesSay(t *testing.T) {
	c := Start(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	config := c.ServiceAccount(t, namespace, "controller", fmt.Sprintf(account, namespace))
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	_, err = client.CoreV1().ConfigMaps(namespace).Create(ctx, settings("mine"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Create(ctx, settings("theirs"), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), err)
	err = client.CoreV1().ConfigMaps(namespace).Delete(ctx, "mine", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err), err)
}

func settings(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "b"}}
}

func TestClusterListsEveryObject(t *testing.T) {
	c := Start(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	maps := c.Client().CoreV1().ConfigMaps(namespace)
	require.NoError(t, eventually(ctx, func(ctx context.Context) error { // the namespace's own
		_, err := maps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	}))
	before, err := c.Objects(ctx)
	require.NoError(t, err)
	made, err := maps.Create(ctx, settings("left"), metav1.CreateOptions{})
	require.NoError(t, err)
	with, err := c.Objects(ctx)
	require.NoError(t, err)
	left := Object{Resource: "configmaps", Namespace: namespace, Name: "left", UID: string(made.UID)}
	require.ElementsMatch(t, append(before, left), with)
	require.Equal(t, "configmaps "+namespace+"/left", left.String())

	require.NoError(t, maps.Delete(ctx, "left", metav1.DeleteOptions{}))
	after, err := c.Objects(ctx)
	require.NoError(t, err)
	require.Equal(t, before, after)
	for _, resource := range []string{"nodes", "namespaces", "clusterroles.rbac.authorization.k8s.io"} {
		require.True(t, contains(after, resource), resource)
	}
}

func contains(objects []Object, resource string) bool {
	for _, o := range objects {
		if o.Resource == resource {
			return true
		}
	}
	return false
}

func TestClusterLinkIsCutAndHeals(t *testing.T) {
	c := Start(t)
	ctx, namespace, link := t.Context(), c.Namespace(t), c.Link(t)
	config := link.Over(c.Config())
	config.Timeout = 5 * time.Minute
	maps := maker(t, config, namespace)
	require.Zero(t, link.Connections())
	require.NoError(t, maps(ctx, "whole"))
	require.Equal(t, 1, link.Connections())

	link.Cut()
	began := time.Now()
	require.Error(t, maps(ctx, "cut"))
	require.Less(t, time.Since(began), config.Timeout, "a cut link does not let one wait")
	link.Heal()
	require.NoError(t, maps(ctx, "healed"))

	link.Silence()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond) // real time: silence is that nothing comes
	require.ErrorIs(t, maps(short, "silent"), context.DeadlineExceeded)
	cancel()
	waiting := make(chan error, 1)
	go func() { waiting <- maps(ctx, "late") }()
	link.Heal()
	require.NoError(t, <-waiting)

	_, err := c.Client().CoreV1().ConfigMaps(namespace).Get(ctx, "cut", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
}

// maker returns a function that makes a ConfigMap.
func maker(t *testing.T, config *rest.Config, namespace string) func(ctx context.Context, name string) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return func(ctx context.Context, name string) error {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, settings(name), metav1.CreateOptions{})
		return err
	}
}

func TestClusterAPIServerIsKilledAndComesBack(t *testing.T) {
	c := Own(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	maps := maker(t, c.Config(), namespace)
	require.NoError(t, maps(ctx, "kept"))
	before, err := c.Pid(APIServer)
	require.NoError(t, err)

	require.NoError(t, c.Kill(APIServer))
	require.Error(t, maps(ctx, "nobody-there"))
	require.False(t, alive(before))
	require.ErrorContains(t, c.Kill(APIServer), "cannot kill")
	require.NoError(t, c.Restart(APIServer))

	_, err = c.Client().CoreV1().ConfigMaps(namespace).Get(ctx, "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Apply(ctx, fmt.Sprintf(deployment, namespace, "")))
	available(ctx, t, c.Client(), namespace, "web") // the others have found it again

	for _, other := range []Component{Etcd, ControllerManager, Scheduler, Kwok} {
		require.NoError(t, c.Kill(other))
		require.NoError(t, c.Restart(other))
	}
	require.NoError(t, eventually(ctx, func(ctx context.Context) error { return maps(ctx, "after-all") }))
	log, err := os.ReadFile(c.Logs(APIServer))
	require.NoError(t, err)
	require.Contains(t, string(log), "Serving securely")
	require.Error(t, c.Restart("nobody"))
}

func TestClusterAccessNeedsRights(t *testing.T) {
	c := Start(t)
	client, err := kubernetes.NewForConfig(rest.AnonymousClientConfig(c.Config()))
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), err)
}
