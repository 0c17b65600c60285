// Package workload is a controller that deploys what users declare into Kubernetes clusters, and keeps it that way.
//
//	kubernetes-runtimes    a cluster: how to reach it, and how it is
//	workload-definitions   what to deploy: manifests in YAML
//	workload-instances     a definition, deployed into a runtime
//	workloads              a definition and an instance in one
//
// An instance is applied with server-side apply under a field manager of this controller's. Everything it applies is in its
// inventory, on the object, before it is applied; what leaves the definition is pruned by the inventory, and nothing else is
// touched, ever. Readiness is that of kstatus. A watch per cluster and kind of resource tells of drift.
//
// The code reads in this order: instance.go (one reconcile, top to bottom), render.go (what is wanted), apply.go, drift.go and
// prune.go (making it so), foreign.go (what is let be), ready.go (how it is), cluster.go, identity.go, health.go and watches.go (a
// cluster and what is known of it).
package workload
