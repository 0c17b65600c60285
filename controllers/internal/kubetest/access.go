package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// pollEvery is how often something is looked at that does not tell by itself.
const pollEvery = 50 * time.Millisecond

// Namespace makes a namespace with a name of its own, in which pods can be created. It is not deleted, which would take
// longer than the rest of most tests: the cluster goes as a whole.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	ctx := t.Context()
	made, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = eventually(ctx, func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// Apply creates the objects of manifests (YAML, several documents), or brings them up to date.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	resources, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	for _, o := range objects {
		kind := o.GroupVersionKind()
		m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, o.GetName(), err)
		}
		var of dynamic.ResourceInterface = resources.Resource(m.Resource)
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			of = resources.Resource(m.Resource).Namespace(o.GetNamespace())
		}
		if _, err := of.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "kubetest", Force: true}); err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, o.GetName(), err)
		}
	}
	return nil
}

// decode reads objects of any kind.
func decode(manifests string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096); ; {
		o := new(unstructured.Unstructured)
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("manifest %d: %w", len(objects)+1, err)
		}
		if len(o.Object) > 0 { // what is between two separators may be a comment alone
			objects = append(objects, o)
		}
	}
}

// ServiceAccount applies manifests that make a service account and grant it rights, and returns that account's access, by
// a token: run a controller with it, or its rights are not tested. It waits until the rights are in force, which they are
// some moments after they were granted.
func (c *Cluster) ServiceAccount(t testing.TB, namespace, name, manifests string) *rest.Config {
	t.Helper()
	ctx := t.Context()
	if err := c.Apply(ctx, manifests); err != nil {
		t.Fatal(err)
	}
	// A day: the tests are over by then.
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))}}
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	granted, err := grants(manifests, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range granted {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + name,
			ResourceAttributes: &g,
		}}
		err := eventually(ctx, func(ctx context.Context) error {
			r, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && !r.Status.Allowed {
				err = fmt.Errorf("%s/%s may not %+v: %s", namespace, name, g, r.Status.Reason)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	config := rest.AnonymousClientConfig(c.admin)
	config.BearerToken = token.Status.Token
	return config
}

// grants are rights that manifests give to an account: one of each rule.
func grants(manifests, namespace, name string) ([]authorizationv1.ResourceAttributes, error) {
	objects, err := decode(manifests)
	if err != nil {
		return nil, err
	}
	rules := map[string][]rbacv1.PolicyRule{} // by kind and name of the role
	for _, o := range objects {
		var role rbacv1.Role // a ClusterRole has the same fields, and one more
		switch o.GetKind() {
		case "Role", "ClusterRole":
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
				return nil, err
			}
			rules[o.GetKind()+"/"+o.GetName()] = role.Rules
		}
	}
	var granted []authorizationv1.ResourceAttributes
	for _, o := range objects {
		var binding rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
		switch o.GetKind() {
		case "RoleBinding", "ClusterRoleBinding":
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding); err != nil {
				return nil, err
			}
		}
		for _, s := range binding.Subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Name == name && s.Namespace == namespace {
				granted = append(granted, samples(rules[binding.RoleRef.Kind+"/"+binding.RoleRef.Name], o.GetNamespace())...)
			}
		}
	}
	return granted, nil
}

// samples are one right of each rule, in a namespace, or in all of them if it is empty.
func samples(rules []rbacv1.PolicyRule, namespace string) (rights []authorizationv1.ResourceAttributes) {
	for _, r := range rules {
		if len(r.Resources) == 0 {
			continue // of paths that are no resources
		}
		right := authorizationv1.ResourceAttributes{Namespace: namespace, Group: r.APIGroups[0], Verb: r.Verbs[0]}
		right.Resource, right.Subresource, _ = strings.Cut(r.Resources[0], "/")
		if len(r.ResourceNames) > 0 {
			right.Name = r.ResourceNames[0]
		}
		rights = append(rights, right)
	}
	return rights
}

// eventually calls a function until it succeeds, and returns its last error if it does not in time.
func eventually(ctx context.Context, try func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollEvery, patience, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}
