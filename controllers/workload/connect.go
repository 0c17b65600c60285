package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// requestTimeout bounds each request to a cluster that is not a watch.
const requestTimeout = 20 * time.Second

// errRuntime is of a runtime that cannot be right, whatever its cluster says.
var errRuntime = errors.New("the runtime is wrong")

// connection is how to reach the cluster of a runtime. version tells one way from another: it changes with the spec, and with
// the file that it names.
func connection(spec *RuntimeSpec, kubeconfigs string) (cfg *rest.Config, version string, err error) {
	data, err := json.Marshal(spec) //nolint:gosec // for a sum, which says nothing of what is secret in it
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	sum.Write(data)
	ways := 0
	for _, way := range []bool{spec.Kubeconfig != "", spec.KubeconfigFile != "", spec.Endpoint != "", spec.InCluster} {
		if way {
			ways++
		}
	}
	switch {
	case ways != 1:
		return nil, "", fmt.Errorf("%w: want exactly one of kubeconfig, kubeconfigFile, endpoint and inCluster", errRuntime)
	case spec.InCluster:
		cfg, err = rest.InClusterConfig()
	case spec.Endpoint != "":
		cfg, err = endpoint(spec)
	default:
		text := []byte(spec.Kubeconfig)
		if spec.KubeconfigFile != "" {
			if text, err = readKubeconfig(kubeconfigs, spec.KubeconfigFile); err != nil {
				return nil, "", err
			}
			sum.Write(text)
		}
		cfg, err = kubeconfig(text, spec.Context)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errRuntime, err)
	}
	cfg.QPS, cfg.Burst = float32(max(1, spec.QPS)), max(1, spec.Burst)
	cfg.Timeout = requestTimeout
	cfg.UserAgent = "evenkeel"
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, hex.EncodeToString(sum.Sum(nil)), nil
}

func endpoint(spec *RuntimeSpec) (*rest.Config, error) {
	switch {
	case spec.Token == "" && spec.ClientCertificate == "":
		return nil, errors.New("want token, or clientCertificate and clientKey, with endpoint")
	case (spec.ClientCertificate == "") != (spec.ClientKey == ""):
		return nil, errors.New("want clientCertificate and clientKey, or neither")
	}
	return &rest.Config{
		Host: spec.Endpoint, BearerToken: spec.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: []byte(spec.CA), CertData: []byte(spec.ClientCertificate), KeyData: []byte(spec.ClientKey)},
	}, nil
}

func readKubeconfig(folder, name string) ([]byte, error) {
	if folder == "" {
		return nil, fmt.Errorf("%w: kubeconfigFile: this controller has no folder of kubeconfigs (--kubeconfigs)", errRuntime)
	}
	if filepath.Base(name) != name || name == "." || name == ".." {
		return nil, fmt.Errorf("%w: kubeconfigFile: want the name of a file, not a path", errRuntime)
	}
	text, err := os.ReadFile(filepath.Join(folder, name)) //nolint:gosec // the name was checked above
	if err != nil {
		var path *fs.PathError // which says where the folder is: that is the operator's
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("%w: kubeconfigFile: %s: %w", errRuntime, name, err)
	}
	return text, nil
}

// kubeconfig reads a kubeconfig. It refuses what would have the controller run a program or read a file for whoever wrote it.
func kubeconfig(text []byte, context string) (*rest.Config, error) {
	loaded, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("kubeconfig: it cannot be read") // the error may quote it, with what is secret in it
	}
	if context == "" {
		context = loaded.CurrentContext
	}
	chosen := loaded.Contexts[context]
	if chosen == nil {
		return nil, fmt.Errorf("kubeconfig: it has no context %q", context)
	}
	cluster, user := loaded.Clusters[chosen.Cluster], loaded.AuthInfos[chosen.AuthInfo]
	if cluster == nil || user == nil {
		return nil, fmt.Errorf("kubeconfig: context %s: its cluster or its user is missing", context)
	}
	if err := harmless(cluster, user); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*loaded, context, new(clientcmd.ConfigOverrides), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: context %s cannot be used", context)
	}
	return cfg, nil
}

func harmless(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	for field, value := range map[string]string{
		"certificate-authority": cluster.CertificateAuthority, "client-certificate": user.ClientCertificate,
		"client-key": user.ClientKey, "tokenFile": user.TokenFile,
	} {
		if value != "" {
			return fmt.Errorf("%s names a file: put the data into the kubeconfig (kubectl config view --flatten)", field)
		}
	}
	switch {
	case user.Exec != nil:
		return errors.New("exec names a program to run: want a token or a client certificate")
	case user.AuthProvider != nil:
		return errors.New("auth-provider: want a token or a client certificate")
	}
	return nil
}
