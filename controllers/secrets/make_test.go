package secrets

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMadeKeysAreKeptForTheirOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	k, err := LoadOrMake(path, "dev")
	require.NoError(t, err)
	require.Equal(t, "dev", k.First())
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	again, err := LoadOrMake(path, "other")
	require.NoError(t, err)
	require.Equal(t, k, again, "it is kept")
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)

	other, err := LoadOrMake(filepath.Join(t.TempDir(), "keys"), "dev")
	require.NoError(t, err)
	require.NotEqual(t, k, other, "it is random")
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = LoadOrMake(path, "dev")
	require.ErrorContains(t, err, "others must not read it")
	_, err = LoadOrMake(filepath.Join(t.TempDir(), "no", "keys"), "dev")
	require.ErrorContains(t, err, "make ")
}
