package workload

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fieldManager is what this controller is called in managedFields.
const fieldManager = "evenkeel"

// seen is what is kept of a resource in a cluster: what kstatus looks at, and whether others have changed what is ours.
type seen struct {
	unstructured.Unstructured
	// fields stands for the fields that belong to this controller, and for when it applied them: whoever changes one of them takes
	// it away, and another apply under this controller's name, which takes none away, is a later one.
	fields string
	// others are the other field managers, the latest first.
	others []string
}

// look takes from a resource what is to be kept. It changes it.
func look(u *unstructured.Unstructured) *seen {
	s := &seen{}
	managers := u.GetManagedFields()
	slices.SortStableFunc(managers, func(a, b metav1.ManagedFieldsEntry) int {
		if a.Time == nil || b.Time == nil {
			return 0
		}
		return b.Time.Compare(a.Time.Time)
	})
	for _, m := range managers {
		switch {
		case m.Subresource != "":
		case m.Manager == fieldManager && m.Operation == metav1.ManagedFieldsOperationApply:
			s.fields = stamp(u, &m)
		default:
			s.others = append(s.others, m.Manager)
		}
	}
	slim(u)
	s.Unstructured = *u
	return s
}

// stamp stands for the fields of a resource that an entry says belong to a manager, and for when it wrote them.
func stamp(u *unstructured.Unstructured, m *metav1.ManagedFieldsEntry) string {
	data := []byte(u.GetUID())
	if m.Time != nil {
		data = m.Time.UTC().AppendFormat(data, time.RFC3339)
	}
	if m.FieldsV1 != nil {
		data = append(data, m.FieldsV1.GetRawBytes()...)
	}
	return sumOf(data)
}

// slim drops what is large and is not looked at.
func slim(u *unstructured.Unstructured) {
	u.SetManagedFields(nil)
	u.SetAnnotations(nil)
	for _, path := range [][]string{{"data"}, {"binaryData"}, {"stringData"}, {"spec", "template"}, {"spec", "jobTemplate"}, {"spec", "volumeClaimTemplates"}} {
		unstructured.RemoveNestedField(u.Object, path...)
	}
	if group := u.GroupVersionKind().Group; strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") || group == "apiextensions.k8s.io" {
		unstructured.RemoveNestedField(u.Object, "spec") // of custom resources and their definitions
	}
}
