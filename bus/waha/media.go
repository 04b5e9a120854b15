package waha

import (
	"cmp"
	"math"
	"strings"
)

// Media is the file of a message.
type Media struct {
	// URL is where WAHA says the file is; empty when it did not download it. It
	// is foreign input: its host must be replaced by the configured one before
	// anything is fetched, and it lives for minutes.
	URL      string
	MIME     string // may carry parameters: "audio/ogg; codecs=opus"
	Filename string // chosen by the sender; for display only
	Size     int64  // bytes as the sender claims; 0 when unknown
	Voice    bool   // recorded in the chat, not an audio file
	GIF      bool   // a video that loops without sound
	Failed   bool   // WAHA tried to download it and could not: worth a retry
	S3       *S3Object
}

// S3Object is where WAHA keeps the file; unlike the signed URL it does not expire.
type S3Object struct {
	Bucket string
	Key    string
}

// Location is a place that was sent.
type Location struct {
	Latitude    float64
	Longitude   float64
	Live        bool
	Name        string
	Address     string
	URL         string
	Description string
}

// readMedia fills what the payload and the raw content tell of the file, which
// also settles the type when nothing else does. Old versions wrote mediaUrl and
// mimetype beside the body; where present they win.
func (r *reading) readMedia(m *Message, c content) {
	told := r.p.object("media")
	if told == nil && r.p.has("media") {
		r.fault("/media", RuleObject)
	}
	if _, isText := told["url"].(string); told.has("url") && !isText {
		r.fault("/media/url", RuleString)
	}
	media := Media{
		URL:      cmp.Or(r.p.text("mediaUrl"), told.text("url")),
		MIME:     cmp.Or(r.p.text("mimetype"), told.text("mimetype"), c.body.text("mimetype"), r.data.text("mimetype")),
		Filename: cmp.Or(told.text("filename"), c.body.text("fileName", "title"), r.data.text("filename")),
		Voice:    c.body.flag("PTT", "ptt") || c.name == "ptt",
		GIF:      c.body.flag("gifPlayback") || r.data.flag("isGif"),
		Failed:   told.has("error"),
	}
	for _, size := range []any{c.body["fileLength"], r.data["size"]} {
		if n, ok := asInt(size); ok && n > 0 {
			media.Size = n
			break
		}
	}
	if s3 := told.object("s3"); s3.text("Bucket") != "" && s3.text("Key") != "" {
		media.S3 = &S3Object{Bucket: s3.text("Bucket"), Key: s3.text("Key")}
	}
	m.HasMedia = r.p.flag("hasMedia") || media.URL != "" || media.Failed || isFile(m.Type)
	if !m.HasMedia {
		return
	}
	m.MediaMissing = media.URL == ""
	m.Media = &media
	if m.Type == "" || m.Type == TypeText && media.MIME != "" {
		m.Type = typeOfMIME(&media)
	}
}

// isFile reports whether a content of this type is always a file.
func isFile(t Type) bool {
	switch t {
	case TypeImage, TypeVideo, TypeAudio, TypeDocument, TypeSticker:
		return true
	default:
		return false
	}
}

// typeOfMIME guesses the type when nothing else tells it.
func typeOfMIME(media *Media) Type {
	mime := strings.ToLower(media.MIME)
	switch {
	case strings.HasPrefix(mime, "image/webp"):
		return TypeSticker
	case strings.HasPrefix(mime, "image/"):
		return TypeImage
	case strings.HasPrefix(mime, "video/"):
		return TypeVideo
	case strings.HasPrefix(mime, "audio/"):
		media.Voice = media.Voice || strings.HasPrefix(mime, "audio/ogg; codecs=opus")
		return TypeAudio
	}
	return TypeDocument
}

// location reads the place: WAHA writes coordinates as text, engines as numbers.
func (r *reading) location(c content) *Location {
	told := r.p.object("location")
	lat, latOK := firstFloat(told["latitude"], c.body["degreesLatitude"], r.data["lat"])
	long, longOK := firstFloat(told["longitude"], c.body["degreesLongitude"], r.data["lng"])
	if !latOK || !longOK || math.Abs(lat) > 90 || math.Abs(long) > 180 {
		return nil
	}
	return &Location{
		Latitude:    lat,
		Longitude:   long,
		Live:        told.flag("live") || c.name == "liveLocationMessage" || c.name == "live_location",
		Name:        cmp.Or(told.text("name"), c.body.text("name")),
		Address:     cmp.Or(told.text("address"), c.body.text("address")),
		URL:         cmp.Or(told.text("url"), c.body.text("URL", "url")),
		Description: told.text("description"),
	}
}

func firstFloat(values ...any) (float64, bool) {
	for _, v := range values {
		if f, ok := asFloat(v); ok {
			return f, true
		}
	}
	return 0, false
}

// vCards reads contact cards from WAHA's list, else from the raw content.
func (r *reading) vCards(c content) []string {
	var cards []string
	list, _ := r.p["vCards"].([]any)
	for _, v := range list {
		if card, ok := v.(string); ok && card != "" {
			cards = append(cards, card)
		}
	}
	if len(cards) > 0 {
		return cards
	}
	for _, contact := range append(c.body.objects("contacts"), c.body) {
		if card := contact.text("vcard"); card != "" {
			cards = append(cards, card)
		}
	}
	if body, _ := r.p["body"].(string); len(cards) == 0 && strings.HasPrefix(body, "BEGIN:VCARD") && (c.name == "vcard" || c.name == "multi_vcard") {
		cards = append(cards, body)
	}
	return cards
}
