package urlpolicy

import (
	"net/netip"
	"testing"
)

func TestCheckAddrRefusesSpecialRanges(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255",
		"169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1",
		"192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255",
		"240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200",
		"::", "::1", "::10.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1",
		"64:ff9b:1::1", "100::1", "2001::1", "2001:1ff::1", "2001:db8::1", "2002:a9fe:a9fe::1", "3fff::1", "5f00::1",
		"fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2606:4700::1%eth0",
		"4000::1", "1::1",
	} {
		if got, want := codeOf(t, CheckAddr(netip.MustParseAddr(text))), CodePrivateIP; got != want {
			t.Errorf("CheckAddr(%s) = %q, want %q", text, got, want)
		}
	}
	if CheckAddr(netip.Addr{}) == nil {
		t.Error("CheckAddr(zero) = nil, want a refusal")
	}
}

func TestCheckAddrAcceptsPublicAddresses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
		"169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.1", "192.169.0.0", "198.17.255.255", "198.20.0.0",
		"223.255.255.255", "168.63.129.17", "::ffff:8.8.8.8", "64:ff9b::808:808", "2606:4700::1111", "2001:200::1", "2a00::1",
	} {
		if err := CheckAddr(netip.MustParseAddr(text)); err != nil {
			t.Errorf("CheckAddr(%s) = %v, want nil", text, err)
		}
	}
}

func TestCheckDialOpensOnlyLoopbackAndPrivateRanges(t *testing.T) {
	t.Parallel()
	everything := []string{"0.0.0.0/0", "::/0", "receiver", "localhost", "metadata.google.internal", "fd00::/8"}
	for name, tt := range map[string]struct {
		allow []string
		host  string
		addr  string
		want  Code
	}{
		"public address without entry":           {nil, "example.com", "8.8.8.8", ""},
		"private address without entry":          {nil, "example.com", "10.0.0.1", CodePrivateIP},
		"localhost to IPv4 loopback":             {[]string{"localhost"}, "localhost", "127.0.0.1", ""},
		"localhost to IPv6 loopback":             {[]string{"localhost"}, "localhost", "::1", ""},
		"entry of another host":                  {[]string{"localhost"}, "example.com", "127.0.0.1", CodePrivateIP},
		"host entry to a private address":        {[]string{"receiver"}, "receiver", "172.18.0.3", ""},
		"host entry with the port":               {[]string{"receiver:9000"}, "receiver", "172.18.0.3", ""},
		"host entry with another port":           {[]string{"receiver:9001"}, "receiver", "172.18.0.3", CodePrivateIP},
		"range entry opens any name":             {[]string{"172.16.0.0/12"}, "example.com", "172.18.0.3", ""},
		"range entry opens the mapped form":      {[]string{"172.16.0.0/12"}, "example.com", "::ffff:172.18.0.3", ""},
		"address entry with another port":        {[]string{"127.0.0.1:9001"}, "127.0.0.1", "127.0.0.1", CodePrivateIP},
		"link-local under every entry":           {everything, "receiver", "169.254.169.254", CodePrivateIP},
		"mapped link-local under every entry":    {everything, "receiver", "::ffff:169.254.169.254", CodePrivateIP},
		"translated link-local":                  {everything, "receiver", "64:ff9b::a9fe:a9fe", CodePrivateIP},
		"IPv6 link-local under every entry":      {everything, "receiver", "fe80::1", CodePrivateIP},
		"IPv6 metadata inside an allowed range":  {everything, "receiver", "fd00:ec2::254", CodePrivateIP},
		"metadata inside the shared range":       {everything, "receiver", "100.100.100.200", CodePrivateIP},
		"host agent on a public-looking address": {everything, "receiver", "168.63.129.16", CodePrivateIP},
		"named metadata host":                    {everything, "metadata.google.internal", "169.254.169.254", CodePrivateIP},
		"multicast under every entry":            {everything, "receiver", "224.0.0.1", CodePrivateIP},
		"unspecified under every entry":          {everything, "receiver", "0.0.0.0", CodePrivateIP},
		"zone under every entry":                 {everything, "receiver", "fd12::1%eth0", CodePrivateIP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := policy(t, tt.allow...).CheckDial(tt.host, 9000, netip.MustParseAddr(tt.addr))
			if got := codeOf(t, err); got != tt.want {
				t.Errorf("CheckDial = %q, want %q", got, tt.want)
			}
		})
	}
}
