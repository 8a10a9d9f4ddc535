# The site of docs/; tools/site builds it.
project = "Koine"
copyright = "the Koine authors"
version = release = "0.1.0"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
root_doc = "index"
source_suffix = [".md"]
myst_heading_anchors = 4
highlight_language = "text"
html_theme = "furo"
html_title = "Koine"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
