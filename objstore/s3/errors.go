package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// refusal is what a server said when it did not do what was asked.
type refusal struct {
	status  int
	code    string // "NoSuchKey"; "" when the server gave none
	message string
	request string // the server's number of the request
	region  string // that the server named
	skew    time.Duration
	after   time.Duration // Retry-After
}

// Error implements error.
func (r *refusal) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "status %d", r.status)
	if r.code != "" {
		b.WriteString(" " + r.code)
	}
	if r.message != "" {
		b.WriteString(": " + r.message)
	}
	if r.region != "" && r.wantsRegion() {
		b.WriteString(" (the bucket is in region " + strconv.Quote(r.region) + ")")
	}
	if r.request != "" {
		b.WriteString(" (request " + r.request + ")")
	}
	return b.String()
}

// maxMessageBytes bounds what of a server's words goes into errors and logs.
const maxMessageBytes = 256

// errorXML is the body of a refusal. Old Ceph and some proxies leave out parts.
type errorXML struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	RequestID string `xml:"RequestId"`
	Region    string
}

// parseRefusal reads an answer that is no success. HEAD has no body, so headers
// that repeat the code are used where a server has them.
func parseRefusal(x *exchange) *refusal {
	r := &refusal{status: x.status}
	var e errorXML
	if err := xml.Unmarshal(bytes.TrimSpace(x.refusal), &e); err == nil {
		r.code, r.message, r.request, r.region = e.Code, e.Message, e.RequestID, e.Region
	}
	h := x.header
	for _, name := range [...]string{"X-Minio-Error-Code", "X-Amz-Error-Code", "X-Obs-Error-Code", "Error-Code"} {
		if v := h.Get(name); v != "" && r.code == "" {
			r.code = v
		}
	}
	if r.request == "" {
		r.request = h.Get("X-Amz-Request-Id")
	}
	if v := h.Get("X-Amz-Bucket-Region"); v != "" {
		r.region = v
	}
	r.code, r.message, r.request = clip(r.code), clip(r.message), clip(r.request)
	r.after = retryAfter(h.Get("Retry-After"), time.Now())
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		r.skew = time.Since(date)
	}
	return r
}

// clip makes a server's words fit for one line of a log.
func clip(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.TrimSpace(s))
	if len(s) > maxMessageBytes {
		s = strings.ToValidUTF8(s[:maxMessageBytes], "") + "…"
	}
	return s
}

// retryAfter reads a Retry-After header: seconds or a date.
func retryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseInt(strings.TrimSpace(v), 10, 32); err == nil {
		return max(0, time.Duration(s)*time.Second)
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// wantsVirtual reports whether the server demands the bucket in the host name:
// COS, OSS and OBS by their codes.
func (r *refusal) wantsVirtual() bool {
	switch r.code {
	case "PathStyleDomainForbidden", "SecondLevelDomainForbidden", "VirtualHostDomainRequired":
		return true
	}
	return false
}

// wantsRegion reports whether the refusal is about the region of the request.
func (r *refusal) wantsRegion() bool {
	switch r.code {
	case "AuthorizationHeaderMalformed", "InvalidRegion", "PermanentRedirect", "TemporaryRedirect",
		"IllegalLocationConstraintException", "IncorrectEndpoint":
		return true
	case "":
		// The answer to a HEAD has no code.
		return r.status == http.StatusMovedPermanently || r.status == http.StatusTemporaryRedirect ||
			r.status == http.StatusBadRequest
	}
	return false
}

// maxClockSkew is what S3 and its kin allow between a request's date and theirs.
const maxClockSkew = 15 * time.Minute

// codeClasses are the error codes of S3, MinIO, Ceph RGW, OSS, OBS and COS that
// mean more than their status.
var codeClasses = map[string]error{
	"NoSuchKey":     objstore.ErrNotExist,
	"NoSuchVersion": objstore.ErrNotExist,
	"NoSuchObject":  objstore.ErrNotExist,

	"NoSuchBucket":      objstore.ErrNoBucket,
	"InvalidBucketName": objstore.ErrNoBucket,

	"AccessDenied":      objstore.ErrPermission,
	"AllAccessDisabled": objstore.ErrPermission,
	"AccountProblem":    objstore.ErrPermission,
	"UserDisable":       objstore.ErrPermission, // OSS: the account owes money
	"Forbidden":         objstore.ErrPermission,

	"InvalidAccessKeyId":          objstore.ErrCredentials,
	"InvalidAccessKey":            objstore.ErrCredentials,
	"SignatureDoesNotMatch":       objstore.ErrCredentials,
	"ExpiredToken":                objstore.ErrCredentials,
	"ExpiredTokenException":       objstore.ErrCredentials,
	"InvalidToken":                objstore.ErrCredentials,
	"InvalidTokenId":              objstore.ErrCredentials,
	"TokenRefreshRequired":        objstore.ErrCredentials,
	"InvalidSecurity":             objstore.ErrCredentials,
	"InvalidSecurityToken":        objstore.ErrCredentials,
	"SecurityTokenExpired":        objstore.ErrCredentials,
	"SecurityTokenMalformed":      objstore.ErrCredentials,
	"NotSignedUp":                 objstore.ErrCredentials,
	"InactiveAccessKey":           objstore.ErrCredentials,
	"XMinioInvalidIAMCredentials": objstore.ErrCredentials,

	"RequestTimeTooSkewed": objstore.ErrClockSkew,

	"PreconditionFailed": objstore.ErrChanged,
	"InvalidRange":       objstore.ErrChanged, // the range lies within the version that is pinned

	"SlowDown":                         objstore.ErrThrottled,
	"SlowDownRead":                     objstore.ErrThrottled,
	"Throttling":                       objstore.ErrThrottled,
	"ThrottlingException":              objstore.ErrThrottled,
	"RequestLimitExceeded":             objstore.ErrThrottled,
	"RequestThrottled":                 objstore.ErrThrottled,
	"TooManyRequests":                  objstore.ErrThrottled,
	"ServiceUnavailable":               objstore.ErrThrottled,
	"ServerBusy":                       objstore.ErrThrottled,
	"BandwidthLimitExceeded":           objstore.ErrThrottled,
	"QpsLimitExceeded":                 objstore.ErrThrottled,
	"DownloadTrafficRateLimitExceeded": objstore.ErrThrottled,

	"InvalidObjectState": objstore.ErrInvalid, // archived
	"KeyTooLong":         objstore.ErrInvalid,
	"KeyTooLongError":    objstore.ErrInvalid,
	"InvalidObjectName":  objstore.ErrInvalid,
	"InvalidURI":         objstore.ErrInvalid,
	"NotImplemented":     objstore.ErrInvalid,
	"MethodNotAllowed":   objstore.ErrInvalid,

	// These have a status of 400 or 403 and pass.
	"RequestTimeout":   nil,
	"OperationAborted": nil,
	"InternalError":    nil,
	"IncompleteBody":   nil,
}

// class returns the objstore class of a refusal, nil for a transient one. It is
// the only place where status codes and error codes become classes.
func (r *refusal) class() error {
	if class, known := codeClasses[r.code]; known {
		return class
	}
	switch {
	case r.wantsRegion() && r.region != "", r.status == http.StatusMovedPermanently:
		return objstore.ErrInvalid
	case (r.status == http.StatusForbidden || r.status == http.StatusBadRequest) && r.skew.Abs() > maxClockSkew:
		return objstore.ErrClockSkew
	}
	switch r.status {
	case http.StatusNotFound, http.StatusGone:
		return objstore.ErrNotExist
	case http.StatusUnauthorized:
		return objstore.ErrCredentials
	case http.StatusForbidden:
		return objstore.ErrPermission
	case http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
		return objstore.ErrChanged
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return objstore.ErrThrottled
	case http.StatusRequestTimeout, http.StatusConflict, 499:
		return nil
	}
	if r.status >= 300 && r.status < 500 {
		return objstore.ErrInvalid
	}
	return nil
}

// errNotS3 explains answers that no S3 server gives.
var errNotS3 = errors.New("the answer is not S3's; is the endpoint right?")

// failure returns the error of a failed exchange, with its class.
func failure(op objstore.Op, x *exchange) error {
	if x.err != nil {
		return transportError(x.err)
	}
	r := parseRefusal(x)
	class := r.class()
	switch {
	case class == objstore.ErrNotExist && op == objstore.OpList:
		// A bucket is missing, or the server is of another kind: S3's always say which.
		if r.code == "" {
			return fmt.Errorf("%w: %w (%w)", objstore.ErrInvalid, errNotS3, r)
		}
		class = objstore.ErrNoBucket
	case class == objstore.ErrNotExist && op == objstore.OpGet:
		class = objstore.ErrChanged // the version was there
	case class == objstore.ErrClockSkew && r.skew.Abs() > maxClockSkew:
		return fmt.Errorf("%w by %v: %w", class, r.skew.Round(time.Second).Abs(), r)
	case class == objstore.ErrThrottled:
		return &objstore.Throttled{After: r.after, Err: r}
	}
	if class == nil {
		if r.after > 0 {
			return &objstore.Throttled{After: r.after, Err: r}
		}
		return r
	}
	return fmt.Errorf("%w: %w", class, r)
}

// transportError gives errors that come before any answer a class where asking
// again cannot help: certificates, and plain HTTP where TLS was meant.
func transportError(err error) error {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		cert     x509.CertificateInvalidError
		record   tls.RecordHeaderError
		dns      *net.DNSError
	)
	switch {
	case errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &cert):
		return invalid("certificate of the endpoint: %w", err)
	case errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/":
		return invalid("the endpoint speaks http, not https: %w", err)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("the endpoint's name is unknown: %w", err)
	}
	return err
}

// fail names the operation and the object of an error.
func (s *Store) fail(op objstore.Op, key string, err error) error {
	return fmt.Errorf("%s s3://%s/%s: %w", op, s.cfg.Bucket, key, err)
}

// explain finds out why a HEAD failed, when its answer, which has no body, does
// not say: it asks for the first byte, whose refusal has one. It returns the
// answer that says more.
func (s *Store) explain(ctx context.Context, key string, x *exchange) *exchange {
	if x.err != nil || (x.status != http.StatusForbidden && x.status != http.StatusBadRequest) || parseRefusal(x).code != "" {
		return x
	}
	y := s.ask(ctx, query{op: objstore.OpGet, method: http.MethodGet, key: key,
		header: map[string]string{"Range": "bytes=0-0"}})
	if y.failed() && (y.err != nil || parseRefusal(y).code == "") {
		return x
	}
	return y
}
