package urlpolicy

import (
	"errors"
	"strings"
	"testing"
)

func policy(t *testing.T, allow ...string) Policy {
	t.Helper()
	p, err := New(allow)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return p
}

func codeOf(t *testing.T, err error) Code {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("error = %T, want *Error", err)
	}
	return e.Code
}

func TestCheckURLRefusesWithoutAnAllowList(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	for raw, want := range map[string]Code{
		"": CodeInvalid, "https://": CodeInvalid, "https:///path": CodeInvalid, "https:example.com": CodeInvalid,
		"https://example.com/%zz":       CodeInvalid,
		"https://exa%6dple.com/":        CodeInvalid,
		"https://example.com:port/":     CodeInvalid,
		"https://[::1]example.com/":     CodeInvalid,
		"//example.com/":                CodeScheme,
		"example.com":                   CodeScheme,
		"file:///etc/passwd":            CodeScheme,
		"ftp://example.com/":            CodeScheme,
		"gopher://example.com/":         CodeScheme,
		"javascript:alert(1)":           CodeScheme,
		"http://example.com/":           CodeHTTPSRequired,
		"HTTP://example.com:8080/":      CodeHTTPSRequired,
		"https://user:pw@example.com/":  CodeUserinfo,
		"https://good.example@evil.com": CodeUserinfo,
		"https://@example.com/":         CodeUserinfo,
		"https://example.com/#part":     CodeFragment,
		"https://example.com/#":         CodeFragment,

		"https://good.example\\@evil.example/": CodeCharacters,
		"https://example.com/a b":              CodeCharacters,
		" https://example.com/":                CodeCharacters,
		"https://example.com/\r\nX-Evil: 1":    CodeCharacters,
		"https://example.com/\tx":              CodeCharacters,
		"https://example.com/\x00":             CodeCharacters,
		"https://example.com/%0d%0aX-Evil":     CodeCharacters,
		"https://example.com/?q=%0A":           CodeCharacters,
		"https://example.com/%7F":              CodeCharacters,
		"https://example.com/preço":            CodeCharacters,

		"https://example.com/" + strings.Repeat("a", 8<<10): CodeTooLong,

		"https://127。0。0。1/":       CodeHostNotASCII,
		"https://①②⑦.0.0.1/":       CodeHostNotASCII,
		"https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/":       CodeHostNotASCII,
		"https://ｅｘａｍｐｌｅ.com/":     CodeHostNotASCII,
		"https://exаmple.com/":     CodeHostNotASCII, // a Cyrillic letter
		"https://ex%C3%A1mple.br/": CodeHostNotASCII,

		"https://127.1/":                                CodeHost,
		"https://0x7f000001/":                           CodeHost,
		"https://0x7f.0.0.1/":                           CodeHost,
		"https://127.0.0.0x1/":                          CodeHost,
		"https://2130706433/":                           CodeHost,
		"https://0177.0.0.1/":                           CodeHost,
		"https://127.0.0.01/":                           CodeHost,
		"https://1.2.3.4.5/":                            CodeHost,
		"https://1.2.3.256/":                            CodeHost,
		"https://0/":                                    CodeHost,
		"https://0x/":                                   CodeHost,
		"https://127.0.0.1./":                           CodeHost,
		"https://localhost./":                           CodeHost,
		"https://example.com./":                         CodeHost,
		"https://.example.com/":                         CodeHost,
		"https://a..example.com/":                       CodeHost,
		"https://-a.example.com/":                       CodeHost,
		"https://a-.example.com/":                       CodeHost,
		"https://" + long + ".example.com/":             CodeHost,
		"https://" + strings.Repeat("a.", 130):          CodeHost,
		"https://exam!ple.com/":                         CodeHost,
		"https://" + strings.Repeat("a.", 150) + "com/": CodeHost,

		"https://localhost/":                CodePrivateHost,
		"https://LOCALHOST:8443/":           CodePrivateHost,
		"https://app.localhost/":            CodePrivateHost,
		"https://printer.local/":            CodePrivateHost,
		"https://metadata.google.internal/": CodePrivateHost,
		"https://nas.home.arpa/":            CodePrivateHost,
		"https://receiver/":                 CodePrivateHost,
		"http://localhost:3000/":            CodePrivateHost,

		"https://127.0.0.1/":                   CodePrivateIP,
		"https://10.1.2.3:8443/":               CodePrivateIP,
		"https://192.168.0.10/":                CodePrivateIP,
		"https://172.31.255.255/":              CodePrivateIP,
		"https://100.64.0.1/":                  CodePrivateIP,
		"https://0.0.0.0/":                     CodePrivateIP,
		"https://255.255.255.255/":             CodePrivateIP,
		"http://169.254.169.254/latest/":       CodePrivateIP,
		"https://168.63.129.16/":               CodePrivateIP,
		"https://[::1]/":                       CodeIPv6Literal,
		"https://[::]/":                        CodeIPv6Literal,
		"https://[2606:4700::1111]/":           CodeIPv6Literal, // public, but a literal
		"http://[::ffff:169.254.169.254]/":     CodeIPv6Literal,
		"http://[::ffff:a9fe:a9fe]/":           CodeIPv6Literal,
		"http://[64:ff9b::a9fe:a9fe]/":         CodeIPv6Literal,
		"http://[2002:a9fe:a9fe::1]/":          CodeIPv6Literal,
		"http://[::10.0.0.1]/":                 CodeIPv6Literal,
		"http://[fe80::1%25eth0]/":             CodeIPv6Literal,
		"http://[fd00:ec2::254]/":              CodeIPv6Literal,
		"https://[v1.abc]/":                    CodeInvalid,
		"https://example.com:0/":               CodePort,
		"https://example.com:22/":              CodePort,
		"https://example.com:25/":              CodePort,
		"https://example.com:80/":              CodePort,
		"https://example.com:1023/":            CodePort,
		"https://example.com:99999/":           CodePort,
		"https://example.com:0443/":            CodePort,
		"https://example.com:/":                CodePort,
		"https://example.com:184467440737096/": CodePort,
	} {
		u, err := Policy{}.CheckURL(raw)
		if got := codeOf(t, err); got != want {
			t.Errorf("CheckURL(%.80q) = %q, want %q", raw, got, want)
		}
		if u != nil {
			t.Errorf("CheckURL(%.80q) gave a URL beside its error", raw)
		}
	}
}

func TestCheckURLAcceptsPublicHTTPSAndNormalisesTheHost(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://hooks.example.com/crm":          "https://hooks.example.com/crm",
		"HTTPS://Hooks.Example.COM/CRM?a=b%20c":  "https://hooks.example.com/CRM?a=b%20c",
		"https://example.com":                    "https://example.com",
		"https://example.com:8443/x":             "https://example.com:8443/x",
		"https://example.com:1024":               "https://example.com:1024",
		"https://xn--exmple-qta.com/":            "https://xn--exmple-qta.com/",
		"https://8.8.8.8/dns":                    "https://8.8.8.8/dns",
		"https://0xabc.example/":                 "https://0xabc.example/",
		"https://my_service.example.com/":        "https://my_service.example.com/",
		"https://example.com/%2Fa%5Cb/%C3%A1?x=": "https://example.com/%2Fa%5Cb/%C3%A1?x=",
		"https://a.com/" + strings.Repeat("p", maxURL-len("https://a.com/")): "https://a.com/" +
			strings.Repeat("p", maxURL-len("https://a.com/")),
	} {
		u, err := Policy{}.CheckURL(raw)
		if err != nil {
			t.Errorf("CheckURL(%.60q): %v", raw, err)
			continue
		}
		if got := u.String(); got != want {
			t.Errorf("CheckURL(%.60q) = %.60q, want %.60q", raw, got, want)
		}
	}
}

func TestCheckURLFollowsTheAllowList(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		allow, raw string
		want       Code // "" means accepted
	}{
		"address opens http on every high port": {"127.0.0.1", "http://127.0.0.1:49152/hook", ""},
		"address opens port 80":                 {"127.0.0.1", "http://127.0.0.1/hook", ""},
		"address opens https":                   {"127.0.0.1", "https://127.0.0.1/hook", ""},
		"address keeps low ports shut":          {"127.0.0.1", "http://127.0.0.1:25/", CodePort},
		"address does not open a neighbour":     {"127.0.0.1", "http://127.0.0.2/", CodePrivateIP},
		"address does not open localhost":       {"127.0.0.1", "http://localhost:9000/", CodePrivateHost},
		"localhost opens its name":              {"localhost", "http://LocalHost:9000/", ""},
		"localhost does not open the address":   {"localhost", "http://127.0.0.1:9000/", CodePrivateIP},
		"host with port opens that port":        {"receiver:9000", "http://receiver:9000/", ""},
		"host with port opens no other":         {"receiver:9000", "http://receiver:9001/", CodePrivateHost},
		"named low port is a decision":          {"receiver:25", "http://receiver:25/", ""},
		"named port wins over a broad entry":    {"receiver,receiver:81", "http://receiver:81/", ""},
		"address with port opens that port":     {"127.0.0.1:9000", "http://127.0.0.1:9000/", ""},
		"address with port opens no other":      {"127.0.0.1:9000", "http://127.0.0.1:9001/", CodePrivateIP},
		"range opens its members":               {"10.0.0.0/8", "http://10.200.0.1:8080/", ""},
		"range does not open names":             {"10.0.0.0/8", "https://receiver:8443/", CodePrivateHost},
		"public host may use http":              {"example.com", "http://example.com/", ""},
		"public host does not open children":    {"example.com", "http://www.example.com/", CodeHTTPSRequired},
		"everything does not open metadata":     {"0.0.0.0/0,::/0", "http://169.254.169.254/", CodePrivateIP},
		"everything does not open zero":         {"0.0.0.0/0,::/0", "http://0.0.0.0:80/", CodePrivateIP},
		"everything does not open fe80":         {"0.0.0.0/0,::/0", "http://[fe80::1]/", CodeIPv6Literal},
		"mapped literal is never accepted":      {"127.0.0.1", "http://[::ffff:127.0.0.1]/", CodeIPv6Literal},
		"IPv6 address":                          {"::1", "http://[::1]:9000/", ""},
		"IPv6 address in another spelling":      {"::1", "http://[0:0:0:0:0:0:0:1]/", ""},
		"IPv6 address with port":                {"[::1]:9000", "http://[::1]:9000/", ""},
		"IPv6 address on another port":          {"[::1]:9000", "http://[::1]:9001/", CodeIPv6Literal},
		"userinfo stays refused":                {"127.0.0.1", "http://u:p@127.0.0.1/", CodeUserinfo},
		"odd spelling stays refused":            {"127.0.0.1", "http://127.1/", CodeHost},
		"port on https stays refused":           {"example.com", "https://example.com:80/", CodePort},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := policy(t, strings.Split(tt.allow, ",")...).CheckURL(tt.raw)
			if got := codeOf(t, err); got != tt.want {
				t.Errorf("CheckURL = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestCheckURLWritesIPv6InItsCanonicalForm(t *testing.T) {
	t.Parallel()
	u, err := policy(t, "::1").CheckURL("http://[0:0:0:0:0:0:0:1]:9000/x")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := u.String(), "http://[::1]:9000/x"; got != want {
		t.Errorf("CheckURL = %q, want %q", got, want)
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, seed := range []string{
		"https://example.com/a?b=c", "http://127.0.0.1:80/", "https://[::1]:443/", "https://0x7f.1/", "https://u@h/",
		"https://exámple.com", "https://xn--a/", "https://a.b:443?#", "https://%41/", "https://127.0.0.1%00.example.com/",
	} {
		f.Add(seed)
	}
	const secret = "ZQ9MARK"
	open, err := New([]string{"localhost", "127.0.0.0/8", "::1", "box:81"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, p := range []Policy{{}, open} {
			u, err := p.CheckURL(raw + "?k=" + secret)
			if err != nil {
				if codeOf(t, err) == "" || strings.Contains(err.Error(), secret) {
					t.Fatalf("CheckURL(%q): error %q has no code or shows the URL", raw, err)
				}
				continue
			}
			again, err := p.CheckURL(u.String())
			if err != nil || again.String() != u.String() {
				t.Fatalf("CheckURL(%q) accepts %q, then says %v", raw, u, err)
			}
			if u.Scheme == "http" && !p.AllowsHost(u.Hostname(), mustPort(u.Port())) {
				t.Fatalf("CheckURL(%q) accepts http without an entry", raw)
			}
			if u.User != nil || u.Hostname() == "" || u.Host != strings.ToLower(u.Host) || !isASCII(u.String()) {
				t.Fatalf("CheckURL(%q) = %q", raw, u)
			}
		}
	})
}

func mustPort(text string) uint16 {
	if port, ok := parsePort(text); ok {
		return port
	}
	return 80
}
