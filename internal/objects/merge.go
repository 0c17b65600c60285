package objects

import (
	"encoding/json"
	"maps"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Patch is a merge patch (RFC 7396) of what users write of an object. What is absent stays.
type Patch struct {
	// IfMatch, unless it is 0, is the revision that the object has to be at.
	IfMatch int64
	Labels  json.RawMessage
	Spec    json.RawMessage
	Admit   Admit
	// Shown is the spec as it is shown to who patches: that is what they change. Nil shows it as it is.
	Shown func(spec json.RawMessage) (json.RawMessage, error)
}

// Merge is what a PATCH does.
func Merge(p Patch) Rule {
	return func(o *apiclient.Raw) (Effect, error) {
		labels, spec := o.Labels, o.Spec
		if p.Shown != nil {
			var err error
			if spec, err = p.Shown(spec); err != nil {
				return unwritten, err
			}
		}
		if len(p.Labels) > 0 {
			have, _ := json.Marshal(o.Labels) // a map of strings always encodes
			labels = nil
			if err := json.Unmarshal(mergePatch(have, p.Labels), &labels); err != nil {
				return unwritten, Invalid("body.labels", "want a JSON object of strings, and null for what is to be removed")
			}
		}
		if len(p.Spec) > 0 {
			spec = mergePatch(spec, p.Spec)
			if err := CheckDocument("body.spec", spec); err != nil {
				return unwritten, err
			}
		}
		if err := CheckLabels("body.labels", labels); err != nil {
			return unwritten, err
		}
		return Replace(Wanted{IfMatch: p.IfMatch, Labels: labels, Spec: spec, Admit: p.Admit})(o)
	}
}

// mergePatch applies a patch as RFC 7396, section 2, says. Both are valid JSON. Numbers keep their digits.
func mergePatch(target, patch json.RawMessage) json.RawMessage {
	changes, ok := object(patch)
	if !ok {
		return patch
	}
	have, _ := object(target)
	merged := map[string]json.RawMessage{}
	maps.Copy(merged, have)
	for name, value := range changes {
		if string(value) == "null" {
			delete(merged, name)
			continue
		}
		merged[name] = mergePatch(merged[name], value)
	}
	data, _ := json.Marshal(merged) // raw messages that have been decoded encode
	return data
}

func object(data json.RawMessage) (fields map[string]json.RawMessage, ok bool) {
	err := json.Unmarshal(data, &fields)
	return fields, err == nil && fields != nil
}

// CheckMerge checks a merge patch of an object.
func CheckMerge(p Patch) error {
	if len(p.Labels) == 0 && len(p.Spec) == 0 {
		return Invalid("body", "want labels, spec or both")
	}
	if len(p.Spec) > 0 {
		return CheckDocument("body.spec", p.Spec)
	}
	return nil
}
