"""What this host keeps of a lake, so that asking about ten thousand sessions parses none of their manifests.

`manifests` and `segments` are asked, the one about sessions and campaigns, the other about segments' parts. Both rest
on `documents`, which holds what is kept against one listing; the forms of the rows are `manifest_rows` and
`segment_rows`, the SQLite file is `local_cache`. Nothing here is the truth: it can be deleted at any time.
"""
