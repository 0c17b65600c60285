package cluster

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// adminFile has the settings of an administrator's client.
const adminFile = "admin.kubeconfig"

// kubeconfigMark begins the files that are ours to overwrite and to remove.
const kubeconfigMark = "# Written by evenkeel-kube for a cluster that ends with it.\n"

const kubeconfigForm = kubeconfigMark + `apiVersion: v1
kind: Config
clusters:
- name: evenkeel
  cluster:
    server: https://127.0.0.1:%d
    certificate-authority-data: %s
users:
- name: %s
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: evenkeel
  context:
    cluster: evenkeel
    user: %[3]s
current-context: evenkeel
`

// writeKubeconfigs writes the settings of all clients.
func (c *cluster) writeKubeconfigs(k *keys) error {
	text := base64.StdEncoding.EncodeToString
	for name, p := range k.clients {
		config := fmt.Appendf(nil, kubeconfigForm, c.ports.api, text(k.ca), name, text(p.cert), text(p.key))
		if err := os.WriteFile(c.path(name+".kubeconfig"), config, 0o600); err != nil {
			return err
		}
		if name != "admin" || c.Kubeconfig == "" {
			continue
		}
		if err := writeForUser(c.Kubeconfig, config); err != nil {
			return err
		}
		c.given = config
	}
	return nil
}

// writeForUser writes the settings where the user wants them, but over nothing that is not of this program.
func writeForUser(file string, config []byte) error {
	old, err := os.ReadFile(file) //nolint:gosec // the user names it
	if err == nil && !bytes.HasPrefix(old, []byte(kubeconfigMark)) {
		return fmt.Errorf("--kubeconfig %s exists and is not of this program: name a new file", file)
	}
	// An old file would keep its mode, and could be a link to anything: make a new one.
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // likewise
	if err != nil {
		return err
	}
	_, err = f.Write(config)
	return errors.Join(err, f.Close())
}

// removeKubeconfig removes the file that the user asked for, as the cluster is gone. If it has other contents by now it
// belongs to somebody else.
func (c *cluster) removeKubeconfig() error {
	if c.given == nil {
		return nil
	}
	if now, err := os.ReadFile(c.Kubeconfig); err != nil || !bytes.Equal(now, c.given) {
		return nil //nolint:nilerr // it is gone already
	}
	return os.Remove(c.Kubeconfig)
}
