package waha

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMediaIsDescribedWithOrWithoutItsFile(t *testing.T) {
	t.Parallel()
	const raw = `"_data":{"message":{"videoMessage":{"mimetype":"video/mp4","fileLength":"10","gifPlayback":true}}}`
	tests := map[string]struct {
		fields  string
		typ     Type
		missing bool
		want    *Media
	}{
		"not downloaded":     {`"hasMedia":true,"media":null,` + raw, TypeVideo, true, &Media{MIME: "video/mp4", Size: 10, GIF: true}},
		"denied by hasMedia": {`"hasMedia":false,` + raw, TypeVideo, true, &Media{MIME: "video/mp4", Size: 10, GIF: true}},
		"failed": {
			`"hasMedia":true,"media":{"url":null,"mimetype":"image/png","error":{"message":"x"}}`, TypeImage, true,
			&Media{MIME: "image/png", Failed: true},
		},
		"old, which wins": {
			`"mediaUrl":"http://old/f","mimetype":"audio/mpeg","media":{"url":"http://new/f","mimetype":"image/png"}`, TypeAudio, false,
			&Media{URL: "http://old/f", MIME: "audio/mpeg"},
		},
		"a voice note by its mimetype": {
			`"hasMedia":true,"media":{"url":"http://x/f","mimetype":"audio/ogg; codecs=opus"}`, TypeAudio, false,
			&Media{URL: "http://x/f", MIME: "audio/ogg; codecs=opus", Voice: true},
		},
		"a sticker by its mimetype": {
			`"hasMedia":true,"media":{"url":"http://x/f","mimetype":"image/webp"}`, TypeSticker, false, &Media{URL: "http://x/f", MIME: "image/webp"},
		},
		"unknown": {`"hasMedia":true`, TypeDocument, true, &Media{}},
		"none":    {`"hasMedia":false,"media":{},"body":"oi"`, TypeText, false, nil},
		"half an object of S3": {
			`"media":{"url":"http://x/f","mimetype":"image/png","s3":{"Bucket":"b"}}`, TypeImage, false, &Media{URL: "http://x/f", MIME: "image/png"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := messageOf(t, normalised(t, dm(t, "message", "NOWEB", tt.fields)))
			if diff := cmp.Diff(tt.want, m.Media); diff != "" {
				t.Errorf("Media differs (-want +got):\n%s", diff)
			}
			if m.Type != tt.typ || m.MediaMissing != tt.missing || m.HasMedia != (tt.want != nil) {
				t.Errorf("type = %s, missing = %t, has media = %t; want %s, %t", m.Type, m.MediaMissing, m.HasMedia, tt.typ, tt.missing)
			}
		})
	}
}

func TestLocationIsReadOnlyWhenOnEarth(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fields string
		want   *Location
	}{
		"text": {
			`"location":{"live":true,"latitude":"-23.561","longitude":"-46.656","name":"Praça","address":"Rua","url":"http://x","description":"d"}`,
			&Location{-23.561, -46.656, true, "Praça", "Rua", "http://x", "d"},
		},
		"raw numbers":          {`"_data":{"Message":{"locationMessage":{"degreesLatitude":1,"degreesLongitude":2,"name":"n"}}}`, &Location{Latitude: 1, Longitude: 2, Name: "n"}},
		"a browser's numbers":  {`"_data":{"type":"location","lat":1.5,"lng":2}`, &Location{Latitude: 1.5, Longitude: 2}},
		"outside of the world": {`"_data":{"type":"location","lat":91,"lng":2}`, nil},
		"half":                 {`"location":{"latitude":"1"},"_data":{"type":"location"}`, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := messageOf(t, normalised(t, dm(t, "message", "", tt.fields)))
			if diff := cmp.Diff(tt.want, m.Location); diff != "" || m.Type != TypeLocation {
				t.Errorf("type = %s, location differs (-want +got):\n%s", m.Type, diff)
			}
		})
	}
}
