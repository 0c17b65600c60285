package kubetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Object is an object of any kind.
type Object struct {
	Resource  string // "deployments.apps"
	Namespace string // empty if it is in none
	Name      string
	UID       string
}

func (o Object) String() string { return fmt.Sprintf("%s %s/%s", o.Resource, o.Namespace, o.Name) }

// passing are resources whose objects come and go by themselves, or are none (componentstatuses are made up when they are
// asked for).
var passing = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses"}

// given are objects that the cluster itself makes in each namespace, some moments after it.
var given = []string{"configmaps kube-root-ca.crt", "serviceaccounts default"}

// Objects lists every object of the cluster, sorted, except events, leases and what each namespace is given: whoever compares
// two lists finds what was left behind.
func (c *Cluster) Objects(ctx context.Context) ([]Object, error) {
	lists, err := c.client.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("list the resources: %w", err)
	}
	config := c.Config()
	config.WarningHandler = rest.NoWarnings{} // that one of the resources is deprecated
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, l := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "get"}}, lists) {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range l.APIResources {
			resource := version.WithResource(r.Name)
			name := resource.GroupResource().String()
			if slices.Contains(passing, name) {
				continue
			}
			found, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // its definition has just gone
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", name, err)
			}
			for _, o := range found.Items {
				if slices.Contains(given, name+" "+o.Name) {
					continue
				}
				all = append(all, Object{Resource: name, Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)})
			}
		}
	}
	slices.SortFunc(all, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.String(), b.String()), cmp.Compare(a.UID, b.UID))
	})
	return all, nil
}
