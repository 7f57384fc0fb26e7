package origin

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Memory is a read-only S3 in memory: any bucket name, any bytes as keys, and
// lies on demand. It checks no signatures. Objects may be written while it serves.
type Memory struct {
	mu      sync.RWMutex
	objects map[string]*memoryObject // guarded by mu
	sorted  []string                 // keys in order; nil when it must be sorted again; guarded by mu
}

type memoryObject struct {
	data io.ReaderAt
	size int64
	etag string
	mod  time.Time
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{objects: make(map[string]*memoryObject)} }

// Put writes an object and returns its ETag.
func (m *Memory) Put(key string, data []byte) string {
	sum := md5.Sum(data)
	etag := hex.EncodeToString(sum[:])
	m.PutReader(key, bytes.NewReader(data), int64(len(data)), etag)
	return etag
}

// PutReader writes an object whose bytes are made when they are asked for.
func (m *Memory) PutReader(key string, data io.ReaderAt, size int64, etag string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; !ok {
		m.sorted = nil
	}
	m.objects[key] = &memoryObject{data: data, size: size, etag: etag, mod: time.Now().Truncate(time.Second)}
}

// Delete removes an object.
func (m *Memory) Delete(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	m.sorted = nil
}

// ServeHTTP implements http.Handler.
func (m *Memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		writeError(w, r, http.StatusMethodNotAllowed, "MethodNotAllowed")
	case key != "":
		m.object(w, r, key)
	case r.URL.Query().Has("location"):
		writeXML(w, struct {
			XMLName xml.Name `xml:"LocationConstraint"`
		}{})
	case r.Method == http.MethodHead:
		w.WriteHeader(http.StatusOK)
	default:
		m.list(w, r.URL.Query())
	}
}

func (m *Memory) object(w http.ResponseWriter, r *http.Request, key string) {
	m.mu.RLock()
	o := m.objects[key]
	m.mu.RUnlock()
	lie := lieOf(r.Context())
	if o == nil {
		writeError(w, r, http.StatusNotFound, "NoSuchKey")
		return
	}
	if match := strings.Trim(r.Header.Get("If-Match"), `"`); match != "" && match != o.etag && lie != LieNoMatch {
		writeError(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	h := w.Header()
	h.Set("ETag", `"`+o.etag+`"`)
	h.Set("Last-Modified", o.mod.UTC().Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	off, n, status := int64(0), o.size, http.StatusOK
	if first, last, ok := parseRange(r.Header.Get("Range")); ok && lie != LieWhole {
		if first >= o.size {
			writeError(w, r, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		off, n, status = first, min(last, o.size-1)-first+1, http.StatusPartialContent
		said := off
		switch lie {
		case LieShort:
			n = max(1, n/2)
		case LieLong:
			n += 1000
		case LieRange:
			off = (off + 1) % o.size
			said = off
			n = min(n, o.size-off)
		case LieBadRange:
			said++
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", said, said+n-1, o.size))
	}
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	body := io.MultiReader(io.NewSectionReader(o.data, off, min(n, o.size-off)), bytes.NewReader(make([]byte, 1000)))
	_, _ = io.Copy(w, io.LimitReader(body, n))
}

// listing is S3's answer to ListObjectsV2, and to ListObjects as far as it is alike.
type listing struct {
	XMLName     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name        string
	Prefix      string
	Delimiter   string `xml:",omitempty"`
	MaxKeys     int
	KeyCount    int
	Encoding    string `xml:"EncodingType,omitempty"`
	IsTruncated bool
	Next        string `xml:"NextContinuationToken,omitempty"`
	Contents    []listed
	Prefixes    []struct{ Prefix string } `xml:"CommonPrefixes"`
}

type listed struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string
}

// maxPage is how many entries S3 puts on a page.
const maxPage = 1000

func (m *Memory) list(w http.ResponseWriter, q url.Values) {
	prefix, delimiter := q.Get("prefix"), q.Get("delimiter")
	limit := maxPage
	if n, err := strconv.Atoi(q.Get("max-keys")); err == nil && n >= 0 && n < maxPage {
		limit = n
	}
	after := q.Get("start-after")
	if token := q.Get("continuation-token"); token != "" {
		raw, err := hex.DecodeString(token)
		if err != nil {
			http.Error(w, "bad token", http.StatusBadRequest)
			return
		}
		after = string(raw)
	}
	escape := func(s string) string { return s }
	if q.Get("encoding-type") == "url" {
		escape = url.QueryEscape
	}
	page := listing{Prefix: escape(prefix), Delimiter: escape(delimiter), MaxKeys: limit, Encoding: q.Get("encoding-type")}
	keys := m.keys()
	last := ""
	i := max(sort.SearchStrings(keys, prefix), sort.Search(len(keys), func(i int) bool { return keys[i] > after }))
	for ; i < len(keys) && strings.HasPrefix(keys[i], prefix); i++ {
		if page.KeyCount == limit {
			page.IsTruncated, page.Next = true, hex.EncodeToString([]byte(last))
			break
		}
		key := keys[i]
		page.KeyCount++
		if common, ok := commonPrefix(key, prefix, delimiter); ok {
			page.Prefixes = append(page.Prefixes, struct{ Prefix string }{escape(common)})
			// All keys under the common prefix are passed over, on the next page as well.
			i = sort.Search(len(keys), func(j int) bool { return keys[j] > common && !strings.HasPrefix(keys[j], common) }) - 1
			last = keys[i]
			continue
		}
		last = key
		m.mu.RLock()
		o := m.objects[key]
		m.mu.RUnlock()
		if o == nil {
			continue
		}
		page.Contents = append(page.Contents, listed{
			Key: escape(key), Size: o.size, ETag: `"` + o.etag + `"`,
			LastModified: o.mod.UTC().Format("2006-01-02T15:04:05.000Z"), StorageClass: "STANDARD",
		})
	}
	writeXML(w, page)
}

func commonPrefix(key, prefix, delimiter string) (string, bool) {
	if delimiter == "" {
		return "", false
	}
	i := strings.Index(key[len(prefix):], delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+len(delimiter)], true
}

func (m *Memory) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sorted == nil {
		m.sorted = make([]string, 0, len(m.objects))
		for k := range m.objects {
			m.sorted = append(m.sorted, k)
		}
		slices.Sort(m.sorted)
	}
	return m.sorted
}

func writeXML(w http.ResponseWriter, v any) {
	body, err := xml.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
}
