package subject

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var names = Names{Prefix: "evenkeel"}

func TestNamesSurviveTheRoundTrip(t *testing.T) {
	for _, name := range []string{"a", "a-b", "0", strings.Repeat("x", MaxName)} {
		for _, s := range []string{names.Fresh("widgets", name), names.Later("widgets", name)} {
			kind, got, err := names.Parse(s)
			require.NoError(t, err)
			require.Equal(t, "widgets", kind)
			require.Equal(t, name, got)
		}
		kind, got, err := ParseLockKey(LockKey("widgets", name))
		require.NoError(t, err)
		require.Equal(t, "widgets/"+name, kind+"/"+got)
	}
}

// The shard is part of stored names: a new hash would lose every pending requeue and lock of an installation.
func TestShardNeverChanges(t *testing.T) {
	require.Equal(t, "evenkeel.n.widgets.51.blue", names.Fresh("widgets", "blue"))
	require.Equal(t, "evenkeel.s.gadgets.48.red-1", names.Schedule("gadgets", "red-1"))
}

func TestParseRefusesWhatNoPublisherSends(t *testing.T) {
	for _, s := range []string{
		"", "evenkeel", "evenkeel.n", "evenkeel.n.widgets.1", "evenkeel.n.widgets.1.a.b", "other.n.widgets.1.a",
		"evenkeel.s.widgets.1.a", "evenkeel.n.widgets.99.blue", "evenkeel.n.widgets.x.blue", "evenkeel.n.Widgets.1.a",
		"evenkeel.n.widgets.1.-a", "evenkeel.n.widgets.1." + strings.Repeat("x", MaxName+1),
	} {
		_, _, err := names.Parse(s)
		require.Error(t, err, s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("evenkeel.n.widgets.51.blue")
	f.Fuzz(func(t *testing.T, s string) {
		kind, name, err := names.Parse(s)
		if err == nil && names.Fresh(kind, name) != s && names.Later(kind, name) != s {
			t.Errorf("%q parses to %s/%s, which is written differently", s, kind, name)
		}
	})
}
