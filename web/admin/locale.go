package admin

import (
	"embed"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nicksnyder/go-i18n/v2/i18n"
	"golang.org/x/text/language"
)

//go:embed locales/*.json
var localeFiles embed.FS

// languages are what the console speaks; the first is for browsers that ask for
// none of them.
func languages() []language.Tag {
	return []language.Tag{language.English, language.BrazilianPortuguese}
}

// locale is one language: its texts, and how it writes numbers and times.
type locale struct {
	Tag string // for <html lang>
	L   labels // texts without placeholders
	say *i18n.Localizer
}

// locales holds a locale for each language and picks by the request.
type locales struct {
	matcher language.Matcher
	list    []*locale
}

// newLocales reads the catalogues. A text that is missing is an error: a page
// must not show the name of a text.
func newLocales() (*locales, error) {
	bundle := i18n.NewBundle(language.English)
	all := &locales{matcher: language.NewMatcher(languages())}
	for _, tag := range languages() {
		if _, err := bundle.LoadMessageFileFS(localeFiles, "locales/"+tag.String()+".json"); err != nil {
			return nil, fmt.Errorf("read catalogue %s: %w", tag, err)
		}
	}
	for _, tag := range languages() {
		l := &locale{Tag: tag.String(), say: i18n.NewLocalizer(bundle, tag.String())}
		texts := reflect.ValueOf(&l.L).Elem()
		for i := range texts.NumField() {
			text, found, err := l.say.LocalizeWithTag(&i18n.LocalizeConfig{MessageID: texts.Type().Field(i).Name})
			if err != nil || found != tag {
				return nil, fmt.Errorf("catalogue %s has no text %s", tag, texts.Type().Field(i).Name)
			}
			texts.Field(i).SetString(text)
		}
		all.list = append(all.list, l)
	}
	return all, nil
}

// of picks the language by what the browser asks for.
func (a *locales) of(r *http.Request) *locale {
	// A malformed header asks for nothing.
	wanted, _, _ := language.ParseAcceptLanguage(r.Header.Get("Accept-Language"))
	_, i, _ := a.matcher.Match(wanted...)
	return a.list[i]
}

// text is a message with values in it, as pairs of name and value.
func (l *locale) text(id string, pairs ...string) string {
	data := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		data[pairs[i]] = pairs[i+1]
	}
	return l.localize(&i18n.LocalizeConfig{MessageID: id, TemplateData: data})
}

// count is a message about n things, in the form that the language has for n.
func (l *locale) count(id string, n int, pairs ...string) string {
	data := map[string]string{"N": l.number(n)}
	for i := 0; i+1 < len(pairs); i += 2 {
		data[pairs[i]] = pairs[i+1]
	}
	return l.localize(&i18n.LocalizeConfig{MessageID: id, PluralCount: n, TemplateData: data})
}

func (l *locale) localize(c *i18n.LocalizeConfig) string {
	text, err := l.say.Localize(c)
	if err != nil {
		return c.MessageID // a test proves that all ids are there
	}
	return text
}

// has reports whether the catalogue has a message of that id.
func (l *locale) has(id string) bool {
	_, err := l.say.Localize(&i18n.LocalizeConfig{MessageID: id})
	return err == nil
}

// number groups the digits of n by thousands.
func (l *locale) number(n int) string {
	mark := ","
	if l.Tag == language.BrazilianPortuguese.String() {
		mark = "."
	}
	digits := strconv.Itoa(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + mark + digits[i:]
	}
	return sign + digits
}

// capped prints a count that was made up to limit; one more means more.
func (l *locale) capped(n, limit int) string {
	if n > limit {
		return l.number(limit) + "+"
	}
	return l.number(n)
}

// moment is an instant, ready to print.
type moment struct {
	ISO  string // for machines
	Text string // in the zone of the organization
	Ago  string
	UTC  string
}

// moment prints at in zone, and how long before now it was.
func (l *locale) moment(at, now time.Time, zone *time.Location) moment {
	layout := "2006-01-02 15:04:05"
	if l.Tag == language.BrazilianPortuguese.String() {
		layout = "02/01/2006 15:04:05"
	}
	return moment{
		ISO: at.UTC().Format(time.RFC3339), Text: at.In(zone).Format(layout), Ago: l.ago(now.Sub(at)),
		UTC: at.UTC().Format("2006-01-02 15:04:05.000") + " UTC",
	}
}

// ago says how long ago d was, or how far ahead when it is negative.
func (l *locale) ago(d time.Duration) string {
	if d <= -time.Second {
		return l.text("In", "D", l.span(-d))
	}
	if d < 5*time.Second {
		return l.text("JustNow")
	}
	return l.text("Ago", "D", l.span(d))
}

// span rounds d down to its largest unit.
func (l *locale) span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return l.text("Seconds", "N", l.number(int(d.Seconds())))
	case d < time.Hour:
		return l.text("Minutes", "N", l.number(int(d.Minutes())))
	case d < 48*time.Hour:
		return l.text("Hours", "N", l.number(int(d.Hours())))
	default:
		return l.text("Days", "N", l.number(int(d.Hours()/24)))
	}
}
