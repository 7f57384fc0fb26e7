package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Values of [Credentials.Source].
const (
	SourceAuto        = "auto"         // static if keys are given, else environment, file, web identity, container, instance
	SourceStatic      = "static"       // AccessKey, SecretKey, SessionToken
	SourceEnv         = "env"          // AWS_ACCESS_KEY_ID and its siblings
	SourceFile        = "file"         // a shared credentials file, processes and SSO included
	SourceWebIdentity = "web-identity" // a token file exchanged at an STS
	SourceInstance    = "instance"     // metadata service of a container or an instance
	SourceAnonymous   = "anonymous"    // no signature
)

// Credentials says whose requests they are. The zero value is the standard chain.
type Credentials struct {
	Source string // "" means [SourceAuto]

	AccessKey, SecretKey, SessionToken string // of SourceStatic; secrets

	File    string // of SourceFile; "" means AWS_SHARED_CREDENTIALS_FILE or ~/.aws
	Profile string // "" means AWS_PROFILE or "default"

	RoleARN     string // of SourceWebIdentity; "" means AWS_ROLE_ARN
	TokenFile   string // "" means AWS_WEB_IDENTITY_TOKEN_FILE
	Token       *Token // instead of TokenFile; nil: none
	STSEndpoint string // "" means AWS_ENDPOINT_URL_STS, or AWS by AWS_REGION

	// InstanceEndpoint replaces http://169.254.169.254.
	InstanceEndpoint string
}

// Token is a web identity token that somebody else keeps fresh. It is a secret.
type Token struct{ text atomic.Pointer[string] }

// NewToken returns a token that is text until it is replaced.
func NewToken(text string) *Token {
	t := new(Token)
	t.Set(text)
	return t
}

// Set replaces the token, for whoever exchanges it next.
func (t *Token) Set(text string) { t.text.Store(&text) }

// get returns the token, "" when there is none.
func (t *Token) get() string {
	if t == nil {
		return ""
	}
	return *t.text.Load()
}

// Keys returns the keys that c stands for at this moment, as credentials of
// [SourceStatic], or c itself when that is [SourceAnonymous]. cfg says how an STS is
// reached. Errors are of class objstore.ErrCredentials, or that of ctx.
func (c Credentials) Keys(ctx context.Context, cfg Config) (Credentials, error) {
	cfg.Credentials = c
	cfg, _, err := cfg.complete()
	if err != nil {
		return Credentials{}, err
	}
	tr, err := newTransport(cfg)
	if err != nil {
		return Credentials{}, err
	}
	defer tr.CloseIdleConnections()
	id, err := newIdentity(c, tr, cfg.Logger)
	if err != nil {
		return Credentials{}, err
	}
	v, err := id.get(ctx)
	switch {
	case err != nil:
		return Credentials{}, err
	case v.SignerType.IsAnonymous():
		return Credentials{Source: SourceAnonymous}, nil
	}
	return Credentials{Source: SourceStatic, AccessKey: v.AccessKeyID, SecretKey: v.SecretAccessKey, SessionToken: v.SessionToken}, nil
}

// LogValue keeps secrets out of logs.
func (c Credentials) LogValue() slog.Value {
	return slog.GroupValue(slog.String("source", c.Source), slog.Bool("access_key", c.AccessKey != ""))
}

// String keeps secrets out of messages.
func (c Credentials) String() string { return "credentials from " + c.Source }

// validate reports what cannot work.
func (c Credentials) validate() error {
	switch c.Source {
	case "", SourceAuto, SourceEnv, SourceFile, SourceWebIdentity, SourceInstance, SourceAnonymous:
	case SourceStatic:
		if c.AccessKey == "" || c.SecretKey == "" {
			return invalid("credentials: static ones need an access key and a secret key")
		}
	default:
		return invalid("credentials: source %q is unknown", c.Source)
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return invalid("credentials: an access key needs a secret key, and the other way round")
	}
	return nil
}

const (
	// metadataTimeout bounds one request to a metadata service or an STS. On
	// machines without one, packets to its address vanish.
	metadataTimeout = 3 * time.Second
	stsTimeout      = 15 * time.Second
)

// newIdentity returns the identity of all requests of an endpoint.
func newIdentity(c Credentials, tr http.RoundTripper, log *slog.Logger) (*identity, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	source := c.Source
	if source == "" {
		source = SourceAuto
	}
	if source == SourceAuto && c.AccessKey != "" {
		source = SourceStatic
	}
	switch source {
	case SourceAnonymous:
		return fixedIdentity(credentials.Value{SignerType: credentials.SignatureAnonymous}), nil
	case SourceStatic:
		return fixedIdentity(credentials.Value{AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey,
			SessionToken: c.SessionToken, SignerType: credentials.SignatureV4}), nil
	case SourceEnv:
		return &identity{log: log, places: []place{c.env()}}, nil
	case SourceFile:
		return &identity{log: log, places: []place{c.file()}}, nil
	case SourceWebIdentity:
		return &identity{log: log, places: []place{c.webIdentity(tr)}}, nil
	case SourceInstance:
		return &identity{log: log, places: []place{c.instance()}}, nil
	}
	return &identity{log: log, places: []place{c.env(), c.file(), c.webIdentity(tr), c.instance()}}, nil
}

// errAbsent says that a source is not set up, so that the chain goes on. Any
// other error of a source that is set up ends the search: to go on would read
// the bucket as somebody else.
var errAbsent = errors.New("not configured")

// place is one place where credentials come from.
type place struct {
	name string
	get  func(ctx context.Context) (credentials.Value, error)
}

func absent(what string) error { return fmt.Errorf("%w: %s", errAbsent, what) }

// env reads the environment.
func (c Credentials) env() place {
	return place{"environment", func(context.Context) (credentials.Value, error) {
		v := credentials.Value{
			AccessKeyID:     os.Getenv("AWS_ACCESS_KEY_ID"),
			SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
			SessionToken:    os.Getenv("AWS_SESSION_TOKEN"),
		}
		if v.AccessKeyID == "" || v.SecretAccessKey == "" {
			return v, absent("no AWS_ACCESS_KEY_ID")
		}
		return v, nil
	}}
}

// file reads a shared credentials file, anew each time.
func (c Credentials) file() place {
	return place{"file", func(ctx context.Context) (credentials.Value, error) {
		p := &credentials.FileAWSCredentials{Filename: c.File, Profile: c.Profile}
		v, err := p.RetrieveWithCredContext(&credentials.CredContext{Client: http.DefaultClient, Context: ctx})
		switch {
		case errors.Is(err, os.ErrNotExist) && c.File == "":
			return v, absent("no ~/.aws")
		case err != nil && c.Source != SourceFile && c.File == "":
			return v, absent(err.Error())
		case err != nil:
			return v, err
		case v.AccessKeyID == "" || v.SecretAccessKey == "":
			return v, absent("no keys in the profile")
		}
		return v, nil
	}}
}

// webIdentity exchanges a token, as service accounts of Kubernetes have.
func (c Credentials) webIdentity(tr http.RoundTripper) place {
	return place{"web identity", func(ctx context.Context) (credentials.Value, error) {
		file, role, sts := c.TokenFile, c.RoleARN, c.STSEndpoint
		if file == "" {
			file = os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE")
		}
		if role == "" {
			role = os.Getenv("AWS_ROLE_ARN")
		}
		if sts == "" {
			sts = os.Getenv("AWS_ENDPOINT_URL_STS")
		}
		if file == "" && c.Token == nil {
			return credentials.Value{}, absent("no AWS_WEB_IDENTITY_TOKEN_FILE")
		}
		if sts == "" {
			sts = defaultSTS(os.Getenv("AWS_REGION"))
		}
		p := &credentials.STSWebIdentity{
			Client:      &http.Client{Transport: tr, Timeout: stsTimeout, CheckRedirect: noRedirect},
			STSEndpoint: sts,
			RoleARN:     role,
			GetWebIDTokenExpiry: func() (*credentials.WebIdentityToken, error) {
				if c.Token != nil {
					return &credentials.WebIdentityToken{Token: c.Token.get()}, nil
				}
				token, err := os.ReadFile(file)
				if err != nil {
					return nil, err
				}
				return &credentials.WebIdentityToken{Token: strings.TrimSpace(string(token))}, nil
			},
		}
		return p.RetrieveWithCredContext(&credentials.CredContext{Context: ctx})
	}}
}

func defaultSTS(region string) string {
	switch {
	case region == "":
		return credentials.DefaultSTSRoleEndpoint
	case strings.HasPrefix(region, "cn-"):
		return "https://sts." + region + ".amazonaws.com.cn"
	}
	return "https://sts." + region + ".amazonaws.com"
}

// instance asks the metadata service of a container or an instance. It is the
// last in the chain, so its failure means that there is none.
func (c Credentials) instance() place {
	return place{"instance metadata", func(ctx context.Context) (credentials.Value, error) {
		if strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") {
			return credentials.Value{}, absent("disabled by AWS_EC2_METADATA_DISABLED")
		}
		// Never through a proxy: the address means this machine.
		client := &http.Client{
			Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true, ResponseHeaderTimeout: metadataTimeout},
			Timeout:       metadataTimeout,
			CheckRedirect: noRedirect,
		}
		p := &credentials.IAM{Client: client, Endpoint: c.InstanceEndpoint}
		v, err := p.RetrieveWithCredContext(&credentials.CredContext{Client: client, Context: ctx})
		switch {
		case err != nil && c.Source == SourceInstance:
			return v, err
		case err != nil:
			return v, absent(err.Error())
		case v.AccessKeyID == "":
			return v, absent("an empty answer")
		}
		return v, nil
	}}
}

// regionFromEnv returns the region that the environment names, or "".
func regionFromEnv() string {
	for _, name := range [...]string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return ""
}
