// Package admin is the console: pages for people who look after an installation
// and repair what failed.
//
// A page needs no script: forms that filter are GET, forms that act are POST and
// answer with 303. Script refreshes parts of pages in place and changes nothing
// else. What is stored is printed as text, whoever wrote it; personal data of
// payloads stays masked until somebody with the right asks for it, which is
// audited.
//
// Who acts is read anew from the database for every request. The organization
// looked at is the parameter "organization" of the URL; without it, the first of
// the person's own. "all" is for who administers the platform; each look at an
// organization that is not one's own is audited.
package admin
