package urlpolicy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestNewNamesThePositionAndTheRuleOfAWrongEntry(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"http://zqhost":       "without a scheme",
		"*.zqhost.com":        "wildcards",
		"10.0.0.1/8":          "network address",
		"10.0.0.0/33":         "must be a CIDR",
		"zqhost/8":            "must be a CIDR",
		"::ffff:10.0.0.0/104": "IPv4 form",
		"::ffff:10.0.0.1":     "IPv4 form",
		"fe80::1%eth0":        "zone",
		"zqhost:0":            "port",
		"zqhost:99999":        "port",
		"zqhost:":             "port",
		"zqhost:http":         "port",
		"127.1":               "four decimal numbers",
		"2130706433":          "four decimal numbers",
		"zq host":             "letters, digits",
		"zqhóst":              "punycode",
		"zqhost.":             "trailing dot",
		"[::1":                "brackets",
		"[zqhost]:80":         "brackets",
		"169.254.169.254":     "cannot be allowed",
		"169.254.0.0/16":      "cannot be allowed",
		"fe80::/10":           "cannot be allowed",
		"fd00:ec2::254":       "cannot be allowed",
		"168.63.129.16":       "cannot be allowed",
		"224.0.0.0/4":         "cannot be allowed",
		"64:ff9b::/96":        "cannot be allowed",
		"0.0.0.0":             "cannot be allowed",
	} {
		_, err := New([]string{"localhost", entry})
		fault, ok := errors.AsType[*AllowError](err)
		if !ok {
			t.Errorf("New(%q) = %v, want an *AllowError", entry, err)
			continue
		}
		if fault.Position != 2 || !strings.Contains(fault.Rule, want) || strings.Contains(err.Error(), "zq") {
			t.Errorf("New(%q) = %q, want position 2, a rule with %q and not the entry", entry, err, want)
		}
	}
}

func TestNewReportsEveryFaultAndCountsBlankEntries(t *testing.T) {
	t.Parallel()
	_, err := New([]string{"", "a b", " 10.0.0.0/8 ", "c d"})
	if err == nil {
		t.Fatal("New = nil, want two faults")
	}
	for _, want := range []string{"entry 2:", "entry 4:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("New = %q, want %q in it", err, want)
		}
	}
}

func TestAllowsHostAndAllowsAddrFollowTheEntries(t *testing.T) {
	t.Parallel()
	p := policy(t, "Receiver", "box:81", "10.0.0.0/8", "127.0.0.1:9000", "[fd12::1]:9000", "1.2.3.4")
	for name, tt := range map[string]struct{ got, want bool }{
		"host in any case":          {p.AllowsHost("RECEIVER", 1234), true},
		"host with its port":        {p.AllowsHost("box", 81), true},
		"host with another port":    {p.AllowsHost("box", 82), false},
		"unknown host":              {p.AllowsHost("other", 81), false},
		"empty host":                {p.AllowsHost("", 81), false},
		"literal as host":           {p.AllowsHost("10.1.1.1", 81), true},
		"address in range":          {p.AllowsAddr(netip.MustParseAddr("10.1.1.1"), 81), true},
		"mapped address in range":   {p.AllowsAddr(netip.MustParseAddr("::ffff:10.1.1.1"), 81), true},
		"address with its port":     {p.AllowsAddr(netip.MustParseAddr("127.0.0.1"), 9000), true},
		"address with another port": {p.AllowsAddr(netip.MustParseAddr("127.0.0.1"), 9001), false},
		"IPv6 with its port":        {p.AllowsAddr(netip.MustParseAddr("fd12::1"), 9000), true},
		"public address":            {p.AllowsAddr(netip.MustParseAddr("1.2.3.4"), 9000), true},
		"address outside":           {p.AllowsAddr(netip.MustParseAddr("11.1.1.1"), 81), false},
		"zero policy":               {Policy{}.AllowsHost("receiver", 80), false},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: allowed = %v, want %v", name, tt.got, tt.want)
		}
	}
}
