package gen

import "testing"

// TestNames: what the Thrift compiler 0.17 has made of these.
func TestNames(t *testing.T) {
	for idl, want := range map[string]string{
		"get_url": "GetURL", "newThing": "NewThing_", "blobResult": "BlobResult_", "userId": "UserId", "user_id": "UserID",
		"FooArgs": "FooArgs_", "raw_data": "RawData", "x_id": "XID", "lab_svc": "LabSvc", "New": "New_", "URL": "URL",
		"ctx": "Ctx", "http_id": "HTTPID", "photo_album": "PhotoAlbum", "q": "Q",
	} {
		if got := publicName(idl); got != want {
			t.Errorf("publicName(%q) = %q, want %q", idl, got, want)
		}
	}
	for _, c := range []struct{ method, what, want string }{
		{"newThing", "args", "LabSvcNewThingArgs_"}, {"newThing", "result", "LabSvcNewThingResult_"},
		{"get_url", "args", "LabSvcGetURLArgs"}, {"blobResult", "args", "LabSvcBlobResultArgs"}, {"blobResult", "result", "LabSvcBlobResultResult"},
	} {
		if got := helperName("lab_svc", c.method, c.what); got != c.want {
			t.Errorf("helperName(%q, %q) = %q, want %q", c.method, c.what, got, c.want)
		}
	}
	for idl, want := range map[string]string{"type": "type_a1", "Func": "func_a1", "raw_data": "raw_data", "New": "New"} {
		if got := variableName(idl); got != want {
			t.Errorf("variableName(%q) = %q, want %q", idl, got, want)
		}
	}
}
