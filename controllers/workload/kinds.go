package workload

import (
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/api"
)

// The kinds.
const (
	Runtimes    = "kubernetes-runtimes"
	Definitions = "workload-definitions"
	Instances   = "workload-instances"
	Workloads   = "workloads"
)

// Kinds are the four kinds with their schemas.
func Kinds() []api.Kind {
	return []api.Kind{
		{Name: Runtimes, Schema: api.SchemaOf[RuntimeSpec]()},
		{Name: Definitions, Schema: api.SchemaOf[DefinitionSpec]()},
		{Name: Instances, Schema: api.SchemaOf[InstanceSpec]()},
		{Name: Workloads, Schema: api.SchemaOf[WorkloadSpec]()},
	}
}

// RuntimeSpec says how to reach a cluster, in one of three ways: with a kubeconfig, with an endpoint and credentials, or from
// within.
type RuntimeSpec struct {
	// Kubeconfig is a kubeconfig in YAML, with everything in it: files and programs that it names are refused.
	Kubeconfig string `json:"kubeconfig,omitempty" jsonschema_extras:"x-sensitive=true" jsonschema_description:"A kubeconfig in YAML. Files and programs that it names are refused."`
	// KubeconfigFile is the name of a file in the controller's --kubeconfigs folder. It is read anew when it changes.
	KubeconfigFile string `json:"kubeconfigFile,omitempty" jsonschema:"pattern=^[A-Za-z0-9][A-Za-z0-9._-]*$" jsonschema_description:"The name of a file in the controller's --kubeconfigs folder."`
	// Context is the context of the kubeconfig. Default: its current one.
	Context string `json:"context,omitempty" jsonschema_description:"The context of the kubeconfig. Default: its current one."`

	// Endpoint is the URL of the API server, CA its certificate authority in PEM, Token a bearer token.
	Endpoint string `json:"endpoint,omitempty" jsonschema:"pattern=^https://" jsonschema_description:"The URL of the API server."`
	CA       string `json:"ca,omitempty" jsonschema_description:"The certificate authority of the endpoint, in PEM."`
	Token    string `json:"token,omitempty" jsonschema_extras:"x-sensitive=true" jsonschema_description:"A bearer token for the endpoint."`
	// ClientCertificate and ClientKey authenticate instead of a token, in PEM.
	ClientCertificate string `json:"clientCertificate,omitempty" jsonschema_description:"A client certificate for the endpoint, in PEM."`
	ClientKey         string `json:"clientKey,omitempty" jsonschema_extras:"x-sensitive=true" jsonschema_description:"The key of the client certificate, in PEM."`

	// InCluster is the cluster that the controller runs in, with the rights of its pod.
	InCluster bool `json:"inCluster,omitempty" jsonschema_description:"The cluster that the controller runs in."`

	// Cluster is the uid of the cluster (that of its namespace kube-system). Another one is refused. Instances that have their
	// resources in another cluster move to this one, and leave what they have there.
	Cluster string `json:"cluster,omitempty" jsonschema_description:"The uid of the cluster's namespace kube-system. A cluster with another one is refused, and instances leave what they have in another one."`

	// QPS is how many requests a second one replica sends to the cluster, Burst how many at once.
	QPS   int `json:"qps,omitempty" jsonschema:"minimum=1,maximum=10000,default=200" jsonschema_description:"How many requests a second one replica sends to the cluster."`
	Burst int `json:"burst,omitempty" jsonschema:"minimum=1,maximum=10000,default=400" jsonschema_description:"How many requests one replica sends at once."`
}

// RuntimeStatus says how a cluster is.
type RuntimeStatus struct {
	// Healthy is whether the cluster answered at the last look, and Message what it said if not.
	Healthy bool   `json:"healthy"`
	Message string `json:"message,omitempty"`
	// Version is that of its API server, such as v1.36.3.
	Version string `json:"version,omitempty"`
	// Cluster tells this cluster from another one at the same address: the uid of its namespace kube-system. It is empty if the
	// controller may not read that.
	Cluster string `json:"cluster,omitempty"`
	// Since is from when on it has been as it is.
	Since *time.Time `json:"since,omitempty"`
}

// DefinitionSpec is what to deploy.
type DefinitionSpec struct {
	// Manifests are documents in YAML (or JSON), separated by lines of ---. Lists are taken apart.
	Manifests string `json:"manifests" jsonschema:"minLength=1" jsonschema_description:"Documents in YAML, separated by lines of ---."`
	// Variables are replaced wherever ${name} stands in a string of the documents. Others, and $${name}, are left alone.
	Variables []Variable `json:"variables,omitempty" jsonschema_description:"What stands for ${name} in the strings of the documents."`
	// Rollout says how a change reaches the instances.
	Rollout Rollout `json:"rollout,omitzero" jsonschema_description:"How a change reaches the instances."`
}

// Variable is a value that instances may give.
type Variable struct {
	Name        string `json:"name" jsonschema:"pattern=^[A-Za-z_][A-Za-z0-9_]*$"`
	Description string `json:"description,omitempty"`
	// Type is what a string becomes that is ${name} and nothing else: string, integer or boolean.
	Type    string  `json:"type,omitempty" jsonschema:"enum=string,enum=integer,enum=boolean,default=string" jsonschema_description:"What a string becomes that is ${name} and nothing else."`
	Default *string `json:"default,omitempty" jsonschema_description:"The value unless an instance gives one. Without it every instance has to."`
}

// Rollout is the pace at which a change of a definition reaches its instances.
type Rollout struct {
	// AtOnce is how many instances may be on their way to the new generation at one time; 0 is all.
	AtOnce int `json:"atOnce,omitempty" jsonschema:"minimum=0" jsonschema_description:"How many instances may be on their way to a new generation at one time; 0 is all."`
	// MaxFailed is how many instances may fail before no further one is begun.
	MaxFailed int `json:"maxFailed,omitempty" jsonschema:"minimum=0" jsonschema_description:"How many instances may fail before no further one is begun."`
	// Patience is how long an instance may take to be ready before it counts as failed, in seconds.
	Patience int `json:"patience,omitempty" jsonschema:"minimum=1,default=600" jsonschema_description:"After how many seconds an instance that is not ready counts as failed."`
}

// DefinitionStatus says what a definition has in it, and how far its latest generation has come.
type DefinitionStatus struct {
	// Resources are what the documents are, each as group/kind namespace/name.
	Resources []string `json:"resources,omitempty"`
	// Rollout is the latest one.
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Kept are the latest generation and earlier ones that instances have, for those that a rollout has not reached yet.
	Kept []Kept `json:"kept,omitempty"`
}

// RolloutStatus says how far a generation has come.
type RolloutStatus struct {
	Generation int64 `json:"generation"`
	// Released is the name up to which instances, in the order of their names, go to the generation; All is whether all do. The last
	// of them were released at ReleasedAt.
	Released   string     `json:"released,omitempty"`
	All        bool       `json:"all,omitempty"`
	ReleasedAt *time.Time `json:"releasedAt,omitempty"`
	// Instances are how many there are, Updated those that are ready with the generation, Failed those that failed with it.
	Instances int `json:"instances"`
	Updated   int `json:"updated"`
	Failed    int `json:"failed"`
	// Stopped says why no further instance is begun, if that is so.
	Stopped string `json:"stopped,omitempty"`
}

// Kept is a generation of a definition.
type Kept struct {
	Generation int64 `json:"generation"`
	// Spec is the DefinitionSpec in JSON, compressed with gzip.
	Spec []byte `json:"spec"`
}

// What to do about drift: what somebody else changed of an instance.
const (
	DriftRepair = "repair"
	DriftReport = "report"
)

// What becomes of what an instance has applied.
const (
	// OnDeleteDelete deletes it.
	OnDeleteDelete = "delete"
	// OnDeleteKeep takes the labels of the instance off: it is nobody's then.
	OnDeleteKeep = "keep"
	// OnDeleteAbandon does not ask the cluster, which may be no more.
	OnDeleteAbandon = "abandon"
)

// InstanceSpec is a definition, deployed into a runtime.
type InstanceSpec struct {
	Definition string `json:"definition" jsonschema_extras:"x-immutable=true" jsonschema_description:"The name of the workload definition."`
	Runtime    string `json:"runtime" jsonschema_extras:"x-immutable=true" jsonschema_description:"The name of the Kubernetes runtime."`
	// Namespace is where documents go that name none. It is made, and removed at the end, if it is not there. Default: one that
	// is made for the instance, and kept for its life.
	Namespace string            `json:"namespace,omitempty" jsonschema:"pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?$,maxLength=63" jsonschema_extras:"x-immutable=true" jsonschema_description:"Where documents go that name no namespace. Default: a namespace for the instance alone."`
	Variables map[string]string `json:"variables,omitempty" jsonschema_description:"Values for the variables of the definition."`
	// SecretVariables are values that are kept secret, as far as this API goes: what they are put into shows in the cluster.
	SecretVariables map[string]string `json:"secretVariables,omitempty" jsonschema_extras:"x-sensitive=true" jsonschema_description:"Values for variables that are kept secret."`
	// Labels are put on everything that is applied.
	Labels map[string]string `json:"labels,omitempty" jsonschema_description:"Labels for everything that is applied."`
	// Drift is what to do about changes by others: DriftRepair or DriftReport.
	Drift string `json:"drift,omitempty" jsonschema:"enum=repair,enum=report,default=repair" jsonschema_description:"What to do about changes that others make: repair them, or only report them."`
	// Adopt takes over what is there already and belongs to nobody. Without it that is a conflict.
	Adopt bool `json:"adopt,omitempty" jsonschema_description:"Take over what is there already and belongs to no other instance."`
	// OnDelete is what becomes of what was applied: OnDeleteDelete, OnDeleteKeep or OnDeleteAbandon.
	OnDelete string `json:"onDelete,omitempty" jsonschema:"enum=delete,enum=keep,enum=abandon,default=delete" jsonschema_description:"What becomes of what was applied when the instance is deleted: it is deleted, kept without the labels of the instance, or abandoned as it is, without asking the cluster."`
}

// InstanceStatus says how an instance is.
type InstanceStatus struct {
	// Cluster is the uid of the cluster that the resources are in ([RuntimeStatus].Cluster).
	Cluster string `json:"cluster,omitempty"`
	// Namespace is where documents go that name none. It is chosen once.
	Namespace string `json:"namespace,omitempty"`
	// DefinitionGeneration is the generation of the definition that was applied last, all of it.
	DefinitionGeneration int64 `json:"definitionGeneration,omitempty"`
	// Ready is how many of the resources are ready, such as 5/6.
	Ready string `json:"ready,omitempty"`
	// Waiting is what the instance waits for, empty if it is ready.
	Waiting string `json:"waiting,omitempty"`
	// UpdatingSince is from when on it has not been ready with what is wanted, of that generation of the definition.
	UpdatingSince *time.Time `json:"updatingSince,omitempty"`
	UpdatingTo    int64      `json:"updatingTo,omitempty"`
	// Resources is the inventory: everything that was applied, or is about to be.
	Resources []Resource `json:"resources,omitempty"`
	// Drift is what others changed last, and what was done about it.
	Drift []Drifted `json:"drift,omitempty"`
}

// Resource is one entry of an inventory.
type Resource struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// UID is that of the resource in its cluster, empty until it was applied.
	UID string `json:"uid,omitempty"`
	// Applied stands for the document that was applied last, and Fields for the fields that were the controller's then: what still
	// has both is as it should be. Applied is empty from before an apply until its outcome is known.
	Applied string `json:"applied,omitempty"`
	Fields  string `json:"fields,omitempty"`
	// Generation is that of the resource after the last apply: what a watch has of an earlier one is out of date.
	Generation int64 `json:"generation,omitempty"`
	// Adopted is whether the resource was there before.
	Adopted bool `json:"adopted,omitempty"`
	// Completed is whether a job has run to its end: it is not run again when it was cleaned up after that.
	Completed bool `json:"completed,omitempty"`
	// Repairs is how often drift was repaired lately, the last time at RepairedAt.
	Repairs    int        `json:"repairs,omitempty"`
	RepairedAt *time.Time `json:"repairedAt,omitempty"`
	// Status is one word of kstatus (Current, InProgress, Failed, Terminating, NotFound, Unknown) or Drifted, and Reason the rest
	// of it.
	Status string `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Drifted is a change that somebody else made.
type Drifted struct {
	Resource string `json:"resource"`
	What     string `json:"what"`
	// At is when it was found, or, of Times repairs, when the last of them was made.
	At       time.Time `json:"at"`
	Times    int       `json:"times,omitempty"`
	Repaired bool      `json:"repaired"`
}

// WorkloadSpec is a definition and an instance of it in one.
type WorkloadSpec struct {
	Manifests string            `json:"manifests" jsonschema:"minLength=1" jsonschema_description:"Documents in YAML, separated by lines of ---."`
	Runtime   string            `json:"runtime" jsonschema_extras:"x-immutable=true" jsonschema_description:"The name of the Kubernetes runtime."`
	Namespace string            `json:"namespace,omitempty" jsonschema:"pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?$,maxLength=63" jsonschema_extras:"x-immutable=true" jsonschema_description:"Where documents go that name no namespace. Default: a namespace for the workload alone."`
	Labels    map[string]string `json:"labels,omitempty" jsonschema_description:"Labels for everything that is applied."`
	Drift     string            `json:"drift,omitempty" jsonschema:"enum=repair,enum=report,default=repair" jsonschema_description:"What to do about changes that others make: repair them, or only report them."`
}

// WorkloadStatus is that of its instance, in short.
type WorkloadStatus struct {
	// Made are the generations of the workload, and of the definition and the instance that it was made into.
	Made      Made   `json:"made,omitzero"`
	Namespace string `json:"namespace,omitempty"`
	Ready     string `json:"ready,omitempty"`
	Waiting   string `json:"waiting,omitempty"`
}

// Made are generations that belong together.
type Made struct {
	Workload   int64 `json:"workload"`
	Definition int64 `json:"definition"`
	Instance   int64 `json:"instance"`
}

// Objects of the four kinds.
type (
	// Runtime is a cluster.
	Runtime = apiclient.Object[RuntimeSpec, RuntimeStatus]
	// Definition is what to deploy.
	Definition = apiclient.Object[DefinitionSpec, DefinitionStatus]
	// Instance is a definition, deployed.
	Instance = apiclient.Object[InstanceSpec, InstanceStatus]
	// Workload is a definition and an instance in one.
	Workload = apiclient.Object[WorkloadSpec, WorkloadStatus]
)
