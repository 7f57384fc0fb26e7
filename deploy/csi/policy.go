package csi

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore/s3"
)

// Values of the attribute authenticationSource.
const (
	authDriver = "driver" // the daemon's own credentials; the default without a Secret
	authSecret = "secret" // those of nodePublishSecretRef; the default with one
	authPod    = "pod"    // the service account of the Pod
)

var sources = []string{authDriver, authSecret, authPod}

// Names in a Secret.
const (
	secretAccessKey    = "AWS_ACCESS_KEY_ID"
	secretSecretKey    = "AWS_SECRET_ACCESS_KEY"
	secretSessionToken = "AWS_SESSION_TOKEN"
	secretEndpoint     = "endpoint"
	secretRegion       = "region"
	secretCA           = "ca.crt" // PEM
	maxSecretBytes     = 64 << 10
)

// defaultAudience is the audience of tokens that AWS's STS takes.
const defaultAudience = "sts.amazonaws.com"

// Policy is what volumes may ask for. The zero value lets them read with the daemon's
// credentials at its own endpoint, and with their own where their Secret says.
type Policy struct {
	// Sources are the values that authenticationSource may have; none means all. Without "driver"
	// no volume reads what the daemon may read, but only what its own credentials allow.
	Sources []string
	// AllowEndpoints are the endpoints that a volume may name in its attributes.
	AllowEndpoints []string
	// AllowLocal lets Secrets name endpoints on this machine or its own link.
	AllowLocal bool
	// TokenAudience is that of the service account tokens to use; "" means the only one there
	// is, or that of AWS.
	TokenAudience string
	// STSEndpoint exchanges these tokens; "" means AWS's in the region of the volume.
	STSEndpoint string

	caDir string // for certificates from Secrets, where the daemon reads them
}

func (p Policy) validate() error {
	for _, source := range p.Sources {
		if !slices.Contains(sources, source) {
			return &config.Error{What: fmt.Sprintf("%q is no source of credentials", source), Where: "--auth-sources", Do: "give some of " + strings.Join(sources, ",")}
		}
	}
	for _, e := range p.AllowEndpoints {
		if _, err := canonical(e); err != nil {
			return &config.Error{What: err.Error(), Where: "--allow-endpoint", Do: "write it like https://s3.example.com"}
		}
	}
	if _, err := canonical(p.STSEndpoint); p.STSEndpoint != "" && err != nil {
		return &config.Error{What: err.Error(), Where: "--sts-endpoint", Do: "write it like https://sts.example.com"}
	}
	return nil
}

// canonical returns an endpoint in one spelling.
func canonical(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return "", fmt.Errorf("%q is not a URL of scheme and host", redact(endpoint))
	}
	host := strings.ToLower(u.Host)
	if p := u.Port(); p == "80" && u.Scheme == "http" || p == "443" && u.Scheme == "https" {
		host = strings.TrimSuffix(host, ":"+p)
	}
	return u.Scheme + "://" + host, nil
}

// redact hides what may be a password.
func redact(endpoint string) string {
	if strings.Contains(endpoint, "@") {
		return "xxxxx"
	}
	return endpoint
}

// admit works out whose rights a volume has. It takes the endpoint from the Secret into options, and
// refuses one that the administrator did not allow.
func (p Policy) admit(own, options, context, secrets map[string]string) (a access, err error) {
	source := own[attrAuth]
	if source == "" && hasSecret(secrets) {
		source = authSecret
	}
	if (source == authSecret || source == authPod) && options["anonymous"] != "" && options["anonymous"] != "false" {
		return a, refused(codes.InvalidArgument, "volume attribute %q and credentials of the volume's own exclude each other: drop one", "anonymous")
	}
	if source != authPod && own[attrRole] != "" {
		return a, refused(codes.InvalidArgument, "volume attribute %q has a meaning with %s: %s only", attrRole, attrAuth, authPod)
	}
	if given, ok := options["endpoint"]; ok && !p.allowed(given) {
		return a, refused(codes.InvalidArgument, "volume attribute %q: %q is not one that the administrator allows (--allow-endpoint); an endpoint may also come from the volume's Secret, with its credentials", "endpoint", redact(given))
	}
	if source == "" {
		source = authDriver
	}
	if len(p.Sources) > 0 && slices.Contains(sources, source) && !slices.Contains(p.Sources, source) {
		return a, refused(codes.InvalidArgument, "%s: %s is not allowed here: the administrator allows %s", attrAuth, source, strings.Join(p.Sources, " and "))
	}
	switch source {
	case authDriver:
		return access{}, nil
	case authSecret:
		return p.fromSecret(options, context, secrets)
	case authPod:
		return p.fromPod(own, context, secrets)
	}
	return a, refused(codes.InvalidArgument, "volume attribute %q: %q is none of %s, %s and %s", attrAuth, source, authDriver, authSecret, authPod)
}

// hasSecret reports whether the volume came with a Secret: the kubelet may put its tokens there as well.
func hasSecret(secrets map[string]string) bool {
	for key := range secrets {
		if !strings.HasPrefix(key, kubePrefix) {
			return true
		}
	}
	return false
}

func (p Policy) allowed(endpoint string) bool {
	given, err := canonical(endpoint)
	return err == nil && slices.ContainsFunc(p.AllowEndpoints, func(e string) bool {
		e, err := canonical(e)
		return err == nil && e == given
	})
}

// fromSecret reads the keys of a Secret, and the endpoint for which they are.
func (p Policy) fromSecret(options, context, secrets map[string]string) (a access, err error) {
	total := 0
	for _, v := range secrets {
		total += len(v)
	}
	c := control.Credentials{
		AccessKey: strings.TrimSpace(secrets[secretAccessKey]), SecretKey: strings.TrimSpace(secrets[secretSecretKey]),
		SessionToken: strings.TrimSpace(secrets[secretSessionToken]),
	}
	switch {
	case total > maxSecretBytes:
		return a, refused(codes.InvalidArgument, "the Secret of the volume is larger than %d bytes", maxSecretBytes)
	case len(secrets) == 0:
		return a, refused(codes.InvalidArgument, "%s is %s, and the volume has no Secret: give nodePublishSecretRef", attrAuth, authSecret)
	case c.AccessKey == "" || c.SecretKey == "":
		return a, refused(codes.InvalidArgument, "the Secret of the volume lacks %s or %s", secretAccessKey, secretSecretKey)
	case strings.ContainsAny(c.AccessKey+c.SecretKey+c.SessionToken, "\x00\n\r"):
		return a, refused(codes.InvalidArgument, "the keys in the Secret of the volume hold a control character")
	}
	if endpoint := strings.TrimSpace(secrets[secretEndpoint]); endpoint != "" {
		if err := p.checkForeign(endpoint); err != nil {
			return a, err
		}
		options["endpoint"] = endpoint
		if !p.AllowLocal && !p.allowed(endpoint) {
			options["refuseLocal"] = "true" // a name may stand for such an address later
		}
	}
	if region := strings.TrimSpace(secrets[secretRegion]); region != "" {
		options["region"] = region
	}
	ca, err := caOf(secrets)
	if err != nil {
		return a, err
	}
	if ca != "" {
		options["caFile"] = filepath.Join(p.caDir, digest(ca)+".pem")
	}
	return access{ca: ca, scope: "secret/" + context[kubeNamespace], identity: digest(c.AccessKey, c.SecretKey, c.SessionToken), credentials: c}, nil
}

// caOf returns the certificates in a Secret, which are for the endpoint in it.
func caOf(secrets map[string]string) (string, error) {
	ca := secrets[secretCA]
	switch {
	case ca == "":
		return "", nil
	case secrets[secretEndpoint] == "":
		return "", refused(codes.InvalidArgument, "the Secret of the volume has %s, and no %s for which it is", secretCA, secretEndpoint)
	case !x509.NewCertPool().AppendCertsFromPEM([]byte(ca)):
		return "", refused(codes.InvalidArgument, "%s in the Secret of the volume holds no certificate (PEM)", secretCA)
	}
	return ca, nil
}

// checkForeign refuses an endpoint that would have the daemon talk to this machine or to
// what is on its link, such as the metadata services of clouds.
func (p Policy) checkForeign(endpoint string) error {
	if p.allowed(endpoint) {
		return nil
	}
	at, err := canonical(endpoint)
	if err != nil {
		return refused(codes.InvalidArgument, "the endpoint in the Secret of the volume: %v", err)
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return refused(codes.InvalidArgument, "the endpoint in the Secret of the volume: %q is no URL", at)
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	addr, err := netip.ParseAddr(host)
	local := host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && s3.LocalAddr(addr) || err != nil && numeric(host)
	if local && !p.AllowLocal {
		return refused(codes.InvalidArgument, "the endpoint in the Secret of the volume: %q is an address of this machine or its link, which volumes may not name (--allow-local-endpoints)", at)
	}
	return nil
}

// numeric reports whether a name may be taken for an IPv4 address in another spelling: 0x7f.1, 2130706433.
func numeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last == "" || last[0] >= '0' && last[0] <= '9'
}

// fromPod takes the token of the Pod's service account.
func (p Policy) fromPod(own, context, secrets map[string]string) (a access, err error) {
	namespace, account, tokens := context[kubeNamespace], context[kubeServiceAcct], context[kubeTokens]
	if tokens == "" {
		tokens = secrets[kubeTokens]
	}
	switch {
	case namespace == "" || account == "":
		return a, refused(codes.InvalidArgument, "%s is %s, and the kubelet does not say which Pod: the CSIDriver object needs podInfoOnMount: true", attrAuth, authPod)
	case tokens == "":
		return a, refused(codes.InvalidArgument, "%s is %s, and the kubelet sends no token: the CSIDriver object needs tokenRequests", attrAuth, authPod)
	}
	token, err := p.pick(tokens)
	if err != nil {
		return a, err
	}
	return access{
		scope:       "pod/" + namespace,
		identity:    digest(account, own[attrRole], p.STSEndpoint),
		credentials: control.Credentials{WebIdentityToken: token, RoleARN: own[attrRole], STSEndpoint: p.STSEndpoint},
	}, nil
}

// pick returns the token of the audience, out of what the kubelet sends: {"AUDIENCE": {"token": "…"}}.
func (p Policy) pick(tokens string) (string, error) {
	var all map[string]struct {
		Token string `json:"token"`
	}
	if len(tokens) > maxSecretBytes || json.Unmarshal([]byte(tokens), &all) != nil { // its error may quote a secret
		return "", refused(codes.InvalidArgument, "the service account tokens of the kubelet cannot be read")
	}
	audience := p.TokenAudience
	if audience == "" && len(all) == 1 {
		for only := range all {
			audience = only
		}
	}
	if audience == "" {
		audience = defaultAudience
	}
	t := all[audience].Token
	if t == "" || strings.ContainsAny(t, "\x00\n\r") {
		return "", refused(codes.InvalidArgument, "the kubelet sends no token for the audience %q: name it in tokenRequests of the CSIDriver object and in --token-audience", audience)
	}
	return t, nil
}

// digest names secrets without telling them.
func digest(parts ...string) string {
	text, _ := json.Marshal(parts) // strings always encode
	sum := sha256.Sum256(append([]byte("shardwell volume identity\n"), text...))
	return hex.EncodeToString(sum[:16])
}
