package workload

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// phases are kinds in the order in which they are applied: first what others live in, are made of or are allowed by. Kinds of
// custom resources come after all of the workloads that may serve them, and webhooks last: a webhook whose server does not
// run yet would refuse what comes after it.
var phases = [][]schema.GroupKind{
	{{Kind: "Namespace"}},
	{{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}},
	{
		{Kind: "ResourceQuota"},
		{Kind: "LimitRange"},
		{Kind: "ServiceAccount"},
		{Group: "scheduling.k8s.io", Kind: "PriorityClass"},
		{Group: "storage.k8s.io", Kind: "StorageClass"},
		{Group: "networking.k8s.io", Kind: "IngressClass"},
		{Group: "networking.k8s.io", Kind: "NetworkPolicy"},
		{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"},
		{Group: "rbac.authorization.k8s.io", Kind: "Role"},
	},
	{{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}, {Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}},
	{{Kind: "Secret"}, {Kind: "ConfigMap"}, {Kind: "PersistentVolume"}, {Kind: "PersistentVolumeClaim"}},
	{{Kind: "Service"}, {Group: "policy", Kind: "PodDisruptionBudget"}},
	{
		{Kind: "Pod"},
		{Kind: "ReplicationController"},
		{Group: "apps", Kind: "ReplicaSet"},
		{Group: "apps", Kind: "Deployment"},
		{Group: "apps", Kind: "StatefulSet"},
		{Group: "apps", Kind: "DaemonSet"},
		{Group: "batch", Kind: "Job"},
		{Group: "batch", Kind: "CronJob"},
		{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"},
		{Group: "networking.k8s.io", Kind: "Ingress"},
	},
	{}, // all others
	{
		{Group: "apiregistration.k8s.io", Kind: "APIService"},
		{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"},
		{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"},
		{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"},
		{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"},
	},
}

var phaseOf = func() map[schema.GroupKind]int {
	all := map[schema.GroupKind]int{}
	for i, kinds := range phases {
		for _, k := range kinds {
			all[k] = i
		}
	}
	return all
}()

const (
	phaseNamespaces = 0
	phaseCRDs       = 1
)

var phaseWorkloads = phase(schema.GroupKind{Group: "apps", Kind: "Deployment"})

// phaseHooks is that of what decides what may be applied.
var phaseHooks = len(phases) - 1

var phaseOthers = slices.IndexFunc(phases, func(kinds []schema.GroupKind) bool { return len(kinds) == 0 })

// phase is when a kind is applied.
func phase(k schema.GroupKind) int {
	if p, ok := phaseOf[k]; ok {
		return p
	}
	return phaseOthers
}

// inOrder sorts resources as they are applied, and keeps the order of the documents within a phase.
func inOrder(all []wanted) {
	slices.SortStableFunc(all, func(a, b wanted) int {
		return cmp.Compare(phase(a.GroupVersionKind().GroupKind()), phase(b.GroupVersionKind().GroupKind()))
	})
}
