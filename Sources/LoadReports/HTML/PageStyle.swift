// The design of the page: on light and dark screens, small and large ones, and on paper.
//
// It has one style sheet within the page, the reader's own fonts, and no pictures, so it opens from a mail and in ten
// years. Percentiles are shades of one colour in their order. Other curves differ in colour and in stroke, so they can
// be distinguished without colours and on a black and white printer.

enum PageStyle {
  /// Prevents loading and running anything, whatever the page contains (Content Security Policy, level 3).
  static let policy: Markup = """
    <meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
    """

  static let sheet: Markup = """
    <style>
    :root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#15191f;--soft:#586273;--rule:#dfe3e9;--grid:#e8ebf0;
    --blue:#1d5fc4;--orange:#c4580c;--red:#c0262d;--green:#157347;--amber:#b07a00;--grey:#7b8595;
    --p50:#9cc3f5;--p90:#5794e6;--p99:#1d5fc4;--p100:#0c2c66;--bad:#fdecec;--good:#eaf6ef;--warn:#fdf4dd}
    @media(prefers-color-scheme:dark){:root{--paper:#101317;--card:#181c22;--ink:#e8ebf0;--soft:#9aa5b5;--rule:#2c333d;
    --grid:#262c35;--blue:#6ea8ff;--orange:#f29a54;--red:#ff7a7a;--green:#58c98d;--amber:#e5b94a;--grey:#8793a5;
    --p50:#315f9f;--p90:#4c8ce4;--p99:#8fbfff;--p100:#dcebff;--bad:#3a191c;--good:#142c20;--warn:#352a10}}
    *{box-sizing:border-box}
    body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
    main{max-width:1040px;margin:0 auto;padding:28px 20px 48px}
    h1{font-size:24px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
    h2{font-size:17px;margin:0}
    .about{color:var(--soft);margin:0 0 18px;overflow-wrap:anywhere}
    .verdict{border-left:5px solid var(--green);background:var(--good);padding:14px 18px;border-radius:6px;margin:0 0 18px}
    .verdict p{margin:0;font-size:18px;line-height:1.4}
    .verdict ul{margin:8px 0 0;padding-left:20px}
    .verdict.bad{border-color:var(--red);background:var(--bad)}
    .verdict.warn{border-color:var(--amber);background:var(--warn)}
    .tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:10px;margin:0 0 18px;padding:0}
    .tiles div{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
    .tiles dt{color:var(--soft);font-size:13px}
    .tiles dd{margin:0;font-size:22px;font-weight:600;line-height:1.3;white-space:nowrap}
    .tiles small{display:block;font-size:12px;font-weight:400;color:var(--soft);white-space:normal}
    figure,section{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:16px 18px;margin:0 0 18px}
    figcaption p,section>p{margin:2px 0 8px;color:var(--soft);max-width:100ch}
    .legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:0;padding:0;font-size:13px}
    .legend svg{margin-right:6px}
    .plot svg{display:block;width:100%;height:auto}
    .plot svg.narrow{display:none}
    svg text{font-size:12px;fill:var(--soft)}
    svg .axis{fill:var(--ink)}
    svg .note{fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:3px}
    svg path{fill:none;stroke-linejoin:round;stroke-linecap:round}
    .grid{stroke:var(--grid)}.base{stroke:var(--grey)}
    .ramp{fill:var(--grey);opacity:.1}
    svg .outage{fill:var(--red);opacity:.16}
    .limit{stroke:var(--grey);stroke-dasharray:5 4}
    .mark{stroke:var(--ink);stroke-dasharray:2 3}
    .strip{fill:transparent}.strip:hover{fill:var(--ink);opacity:.08}
    .live,.kept,.a{stroke:var(--blue);stroke-width:2}
    .plan{stroke:var(--grey);stroke-width:1.5;stroke-dasharray:5 4}
    .offered{stroke:var(--orange);stroke-width:7;opacity:.45}
    .b{stroke:var(--orange);stroke-width:2;stroke-dasharray:7 3}
    .p50{stroke:var(--p50);stroke-width:2}.p90{stroke:var(--p90);stroke-width:2}.p99{stroke:var(--p99);stroke-width:2}
    .p100{stroke:var(--p100);stroke-width:1.5;stroke-dasharray:1 4}
    .cpu{stroke:var(--green);stroke-width:2}
    .legend .outage{stroke:var(--red);opacity:.3}
    .legend .error,.legend .cut,.legend .outage{stroke-width:8;stroke-linecap:butt}
    svg .error{stroke:var(--red);fill:var(--red);stroke-width:.5}
    svg .cut{stroke:var(--amber);fill:var(--amber);stroke-width:.5}
    svg .filled{stroke:none;fill:var(--blue);opacity:.12}
    svg .solid{fill:var(--blue);stroke:none}
    .table{overflow-x:auto}
    table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
    th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
    tr:last-child>*{border-bottom:0}
    thead th{color:var(--soft);font-weight:500}
    tbody th{font-weight:400}
    .n,td.n{text-align:right;white-space:nowrap}
    thead th{white-space:nowrap}
    tbody th[scope=row]{min-width:9em}
    td.words{overflow-wrap:anywhere;font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:13px}
    .pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:0 18px}
    .worse{color:var(--red);font-weight:600}.better{color:var(--green);font-weight:600}
    footer{color:var(--soft);font-size:13px}
    @media screen and (max-width:680px){main{padding:16px 12px 32px}figure,section{padding:12px}.verdict p{font-size:16px}
    .plot svg.wide{display:none}.plot svg.narrow{display:block}}
    @media print{:root{--paper:#fff;--card:#fff;--ink:#000;--soft:#444}body{font-size:11pt}main{max-width:none;padding:0}
    figure,section,.verdict,.tiles div{break-inside:avoid;border-color:#bbb}
    *{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
    </style>
    """
}
