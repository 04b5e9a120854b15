package waha

import (
	"cmp"
	"strings"
)

// body returns the text or caption: what WAHA extracted, else what we find in
// the engine's data. Browser engines also put there what is no text: the name
// of a document, the preview of a location, the card of a contact.
func (r *reading) body(c content, m Message) string {
	body := r.text("body")
	browser := r.env.Engine.browser()
	switch {
	case m.Type == TypeDocument && m.Media != nil && body == m.Media.Filename:
		body = ""
	case m.Type == TypeLocation && browser:
		body = r.p.object("location").text("description")
	case m.Type == TypeContact && strings.HasPrefix(body, "BEGIN:VCARD"):
		body = ""
	}
	if body != "" {
		return body
	}
	if browser {
		return r.modelText(c)
	}
	return protoText(c)
}

// modelText reads the browser's model. Its body is the text of a chat, but the
// thumbnail of a picture.
func (r *reading) modelText(c content) string {
	if c.name == "chat" {
		return r.data.text("body")
	}
	return r.data.text("caption")
}

// protoText extracts in the order of WAHA itself, and goes on to what WAHA
// leaves out: answers to native flows.
func protoText(c content) string {
	b := c.body
	switch c.key {
	case "conversation":
		return c.text
	case "extendedTextMessage":
		return b.text("text")
	case "imageMessage", "videoMessage", "ptvMessage", "documentMessage", "liveLocationMessage":
		return b.text("caption")
	case "buttonsResponseMessage", "templateButtonReplyMessage":
		return b.text("selectedDisplayText")
	case "listResponseMessage":
		return b.text("title", "description")
	case "interactiveResponseMessage":
		return cmp.Or(b.object("body").text("text"), flowParams(b).text("title", "display_text", "description", "id"))
	case "templateMessage":
		return templateText(b)
	case "interactiveMessage":
		return interactiveText(b)
	case "buttonsMessage":
		return lines(b.text("text"), b.text("contentText"), b.text("footerText"))
	case "listMessage":
		return lines(b.text("title"), b.text("description"), b.text("footerText"))
	case "pollCreationMessage", "pollCreationMessageV2", "pollCreationMessageV3":
		return lines(b.text("name"), namesOf(b.objects("options"), "optionName"))
	case "eventMessage":
		return lines(b.text("name"), b.text("description"))
	case "productMessage":
		return lines(b.object("product").text("title"), b.text("body"))
	case "orderMessage":
		return lines(b.text("orderTitle"), b.text("message"))
	case "groupInviteMessage":
		return b.text("caption", "groupName")
	}
	return ""
}

// selectedID finds what the customer pressed, which only the raw data tells.
func selectedID(c content, data object) string {
	b := c.body
	return cmp.Or(
		b.text("selectedButtonID", "selectedButtonId", "selectedID", "selectedId"),
		b.object("singleSelectReply").text("selectedRowID", "selectedRowId"),
		flowParams(b).text("id"),
		data.text("selectedButtonId"),
		data.object("listResponse").object("singleSelectReply").text("selectedRowId"),
	)
}

// flowParams decodes the JSON text inside the answer to a native flow. GOWS
// carries the choice under its Go field names.
func flowParams(body object) object {
	flow := body.object("nativeFlowResponseMessage")
	if flow == nil {
		flow = body.object("InteractiveResponseMessage").object("NativeFlowResponseMessage")
	}
	params, _ := decodeObject([]byte(flow.text("paramsJSON", "paramsJson")))
	return params
}

func templateText(b object) string {
	hydrated := b.object("hydratedTemplate", "hydratedFourRowTemplate")
	if hydrated == nil {
		hydrated = b.object("Format").object("HydratedFourRowTemplate")
	}
	title := cmp.Or(hydrated.text("hydratedTitleText"), hydrated.object("Title").text("HydratedTitleText"))
	return cmp.Or(
		lines(title, hydrated.text("hydratedContentText"), hydrated.text("hydratedFooterText")),
		interactiveText(b.object("interactiveMessageTemplate")),
	)
}

func interactiveText(b object) string {
	carousel := b.object("carouselMessage")
	if carousel == nil {
		carousel = b.object("InteractiveMessage").object("CarouselMessage")
	}
	parts := []string{b.object("header").text("title"), b.object("body").text("text"), b.object("footer").text("text")}
	for _, card := range carousel.objects("cards") {
		parts = append(parts, card.object("header").text("title"), card.object("body").text("text"))
	}
	return lines(parts...)
}

func namesOf(list []object, key string) string {
	var names []string
	for _, item := range list {
		names = append(names, item.text(key))
	}
	return lines(names...)
}

// lines joins what is not empty, one to a line.
func lines(parts ...string) string {
	var kept []string
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "\n")
}
