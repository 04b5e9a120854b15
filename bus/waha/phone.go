package waha

// PhoneVariants returns the forms under which one E.164 phone may be stored or
// registered, the canonical one first; nil if e164 is not E.164.
//
// Brazilian mobiles gained a ninth digit, and WhatsApp accounts made before it
// still lack it. With and without are the same subscriber when the country is
// 55, the area code 11 to 99 and the old eight digits begin with 6 to 9.
// Landlines (2 to 5) and foreign numbers have one form. The canonical form is
// the one with the digit; a lookup must try all, a write must not merge on them.
func PhoneVariants(e164 string) []string {
	if !isE164(e164) {
		return nil
	}
	const prefix = len("+55DD")
	if len(e164) < prefix || e164[:3] != "+55" || e164[3:prefix] < "11" {
		return []string{e164}
	}
	area, local := e164[:prefix], e164[prefix:]
	switch {
	case len(local) == 8 && local[0] >= '6':
		return []string{area + "9" + local, e164}
	case len(local) == 9 && local[0] == '9' && local[1] >= '6':
		return []string{e164, area + local[1:]}
	}
	return []string{e164}
}

// samePhone reports whether two E.164 phones are one subscriber.
func samePhone(a, b string) bool {
	va, vb := PhoneVariants(a), PhoneVariants(b)
	return len(va) > 0 && len(vb) > 0 && va[0] == vb[0]
}

func isE164(s string) bool {
	return len(s) >= 9 && len(s) <= 16 && s[0] == '+' && allDigits(s[1:])
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
