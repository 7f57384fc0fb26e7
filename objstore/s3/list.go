package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

const (
	// maxPageEntries is the most that S3 gives on one page.
	maxPageEntries = 1000
	// maxPageBytes bounds the answer to a listing: 1000 keys of 1024 bytes, each
	// byte as "%XX", and their attributes, four times over.
	maxPageBytes = 16 << 20
)

// Tokens of pages say by which version of the protocol the next page is asked
// for, and hold the server's token or, for the first version, the last name.
const (
	tokenV1 = "1:"
	tokenV2 = "2:"
)

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	page, err := s.list(ctx, req)
	if err != nil {
		return objstore.Page{}, s.fail(objstore.OpList, req.Prefix, err)
	}
	return page, nil
}

func (s *Store) list(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	v1, err := s.listVersion(req)
	if err != nil {
		return objstore.Page{}, err
	}
	x := s.ask(ctx, listQuery(req, v1))
	if x.failed() {
		if v1 || req.Token != "" || !knowsOnlyV1(x) {
			return objstore.Page{}, failure(objstore.OpList, x)
		}
		y := s.ask(ctx, listQuery(req, true))
		if y.failed() {
			return objstore.Page{}, failure(objstore.OpList, x)
		}
		s.v1.Store(true)
		x = y
	}
	return readPage(x, req)
}

// listVersion reports whether a page is to be asked for by the first version of the protocol.
func (s *Store) listVersion(req objstore.ListRequest) (v1 bool, err error) {
	if req.Prefix != "" {
		if err := checkKey(req.Prefix); err != nil {
			return false, err
		}
	}
	switch {
	case req.Token == "":
		return s.v1.Load(), nil
	case strings.HasPrefix(req.Token, tokenV1):
		return true, nil
	case strings.HasPrefix(req.Token, tokenV2):
		return false, nil
	}
	return false, invalid("token %q of a listing", req.Token)
}

// readPage reads the page that a good answer holds.
func readPage(x *exchange, req objstore.ListRequest) (objstore.Page, error) {
	data, err := io.ReadAll(io.LimitReader(x.body, maxPageBytes+1))
	x.drop()
	if err != nil {
		return objstore.Page{}, err
	}
	if len(data) > maxPageBytes {
		return objstore.Page{}, fmt.Errorf("the page is larger than %d bytes", maxPageBytes)
	}
	return parsePage(data, req)
}

// listQuery returns the request for one page.
func listQuery(req objstore.ListRequest, v1 bool) query {
	limit := req.Limit
	if limit <= 0 || limit > maxPageEntries {
		limit = maxPageEntries
	}
	params := url.Values{
		"encoding-type": {"url"},
		"prefix":        {req.Prefix},
		"max-keys":      {strconv.Itoa(limit)},
	}
	if req.Delimiter != "" {
		params.Set("delimiter", req.Delimiter)
	}
	switch {
	case !v1:
		params.Set("list-type", "2")
		if req.Token != "" {
			params.Set("continuation-token", req.Token[len(tokenV2):])
		}
	case req.Token != "":
		params.Set("marker", req.Token[len(tokenV1):])
	}
	return query{op: objstore.OpList, method: http.MethodGet, params: params}
}

// knowsOnlyV1 reports whether a refusal may be about list-type=2.
func knowsOnlyV1(x *exchange) bool {
	if x.err != nil {
		return false
	}
	switch parseRefusal(x).code {
	case "NotImplemented", "InvalidArgument", "InvalidRequest", "MethodNotAllowed":
		return true
	}
	return x.status == http.StatusNotImplemented
}

// pageXML is a page of either version, and a refusal in the dress of a success.
type pageXML struct {
	XMLName               xml.Name
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
	NextMarker            string
	Contents              []struct {
		Key          string
		LastModified string
		ETag         string
		Size         int64
	}
	CommonPrefixes []struct{ Prefix string }
	Code           string // of a refusal
	Message        string
}

// parsePage reads one page and leaves out what cannot belong to it: names that
// do not begin with the prefix, the marker itself, and repetitions.
func parsePage(data []byte, req objstore.ListRequest) (objstore.Page, error) {
	var in pageXML
	if err := xml.Unmarshal(armour(data), &in); err != nil {
		return objstore.Page{}, invalid("%w (%v)", errNotS3, err)
	}
	switch in.XMLName.Local {
	case "ListBucketResult":
	case "Error":
		x := &exchange{status: http.StatusOK, refusal: data}
		return objstore.Page{}, failure(objstore.OpList, x)
	default:
		return objstore.Page{}, invalid("%w (<%s>)", errNotS3, clip(in.XMLName.Local))
	}
	encoded := strings.EqualFold(strings.TrimSpace(in.EncodingType), "url")
	marker, byMarker := strings.CutPrefix(req.Token, tokenV1)
	seen := make(map[string]struct{}, len(in.Contents)+len(in.CommonPrefixes))
	fresh := func(name string) bool {
		if name == "" || len(name) > chunk.MaxKeyBytes || !strings.HasPrefix(name, req.Prefix) || (byMarker && name == marker) {
			return false
		}
		if _, ok := seen[name]; ok {
			return false
		}
		seen[name] = struct{}{}
		return true
	}
	var page objstore.Page
	last := "" // the greatest name of the page, whether it is new or not
	for _, c := range in.Contents {
		key := decodeName(c.Key, encoded)
		last = max(last, key)
		if fresh(key) && c.Size >= 0 && c.Size <= chunk.MaxObjectBytes {
			page.Objects = append(page.Objects, objstore.Info{
				Key: key, Size: c.Size, ETag: cleanETag(c.ETag), ModTime: parseTime(c.LastModified),
			})
		}
	}
	for _, c := range in.CommonPrefixes {
		prefix := decodeName(c.Prefix, encoded)
		if req.Delimiter == "" || prefix == "" {
			continue
		}
		if !strings.HasSuffix(prefix, req.Delimiter) {
			prefix += req.Delimiter
		}
		last = max(last, prefix)
		if fresh(prefix) {
			page.Prefixes = append(page.Prefixes, prefix)
		}
	}
	if !in.IsTruncated {
		return page, nil
	}
	page.Next = nextToken(&in, encoded, last)
	if page.Next == "" || page.Next == req.Token {
		return objstore.Page{}, errors.New("the page says that there is more, but not where")
	}
	return page, nil
}

// nextToken returns how to ask for the following page. Servers that know only
// the first version ignore list-type=2 and answer without a continuation token,
// and some that know the second forget it; the last name serves all of them.
func nextToken(in *pageXML, encoded bool, last string) string {
	if in.NextContinuationToken != "" {
		return tokenV2 + in.NextContinuationToken
	}
	next := last
	if in.NextMarker != "" && in.NextMarker != last {
		// Ceph did not encode markers for a long time although it said so: when
		// one of the two readings is the last name, it is that one.
		if decoded := decodeName(in.NextMarker, encoded); decoded != last {
			next = decoded
		}
	}
	if next == "" {
		return ""
	}
	return tokenV1 + next
}

// decodeName undoes encoding-type=url and the armour of control characters. A
// name that cannot be such an encoding is taken as it is.
func decodeName(name string, encoded bool) string {
	name = unarmour(name)
	if !encoded {
		return name
	}
	for i := range len(name) {
		if name[i] <= ' ' || name[i] >= 0x7f {
			return name // never in an encoded name
		}
	}
	decoded, err := url.QueryUnescape(name)
	if err != nil {
		return name
	}
	return decoded
}

// XML 1.0 cannot hold most control characters, but servers that do not know
// encoding-type send keys that have them, raw or as "&#x1;". They travel through
// the decoder as characters of a private area, U+F8F00 on, which is a plane no key has use for.
const armourBase = 0xF8F00

// armour hides control characters from the XML decoder.
func armour(data []byte) []byte {
	if bytes.IndexFunc(data, isControl) < 0 && !bytes.Contains(data, []byte("&#")) {
		return data
	}
	out := make([]byte, 0, len(data)+64)
	for i := 0; i < len(data); i++ {
		c := data[i]
		if isControl(rune(c)) {
			out = append(out, string(rune(armourBase+int(c)))...)
			continue
		}
		if c == '&' && i+2 < len(data) && data[i+1] == '#' {
			if v, n := charRef(data[i:]); n > 0 && isControl(v) {
				out = append(out, string(armourBase+v)...)
				i += n - 1
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

// isControl reports whether XML cannot hold c, or does not hand it out as it is
// (carriage return).
func isControl(c rune) bool { return c < 0x20 && c != '\t' && c != '\n' && c >= 0 }

// charRef reads a character reference at the beginning of data, and returns its
// value and length, or 0, 0.
func charRef(data []byte) (v rune, n int) {
	end := bytes.IndexByte(data[:min(len(data), 10)], ';')
	if end < 3 {
		return 0, 0
	}
	digits, base := string(data[2:end]), 10
	if digits[0] == 'x' || digits[0] == 'X' {
		digits, base = digits[1:], 16
	}
	u, err := strconv.ParseUint(digits, base, 21)
	if err != nil {
		return 0, 0
	}
	return rune(u), end + 1
}

// unarmour undoes armour in a decoded name.
func unarmour(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= armourBase && c < armourBase+0x20 {
			return c - armourBase
		}
		return c
	}, name)
}
