"""The names of time zones that SimpleDateFormat parses in English, and their offsets from UTC.

The table contains the names of Java 21 (``DateFormatSymbols.getZoneStrings()``) in Java's order. The order matters,
because Java takes the first name that the text starts with. An offset is the one that the name means since January
2026: Java does not add an hour for daylight saving time where a zone no longer has any, such as for HDT.
"""

from __future__ import annotations

import re
from functools import lru_cache

_ZONES = """
-08:00 Pacific Standard Time; PST
-07:00 Pacific Daylight Time; PDT; Mountain Standard Time; MST
-06:00 Mountain Daylight Time; MDT; Central Standard Time; CST
-05:00 Central Daylight Time; CDT; Eastern Standard Time; EST
-04:00 Eastern Daylight Time; EDT
-10:00 Hawaii-Aleutian Standard Time; HST; Hawaii-Aleutian Daylight Time; HDT
-09:00 Alaska Standard Time; AKST
-08:00 Alaska Daylight Time; AKDT
-04:00 Atlantic Standard Time; AST
-03:00 Atlantic Daylight Time; ADT
-03:30 Newfoundland Standard Time; NST
-02:30 Newfoundland Daylight Time; NDT
+01:00 Central European Standard Time; CET
+02:00 Central European Summer Time; CEST
+00:00 Greenwich Mean Time; GMT
+02:00 Israel Standard Time; IST
+03:00 Israel Daylight Time; IDT
+09:00 Japan Standard Time; JST; Japan Daylight Time; JDT
+02:00 Eastern European Standard Time; EET
+03:00 Eastern European Summer Time; EEST
+08:00 China Standard Time; China Daylight Time
+00:00 Coordinated Universal Time; UTC
+09:30 Australian Central Standard Time; ACST; Australian Central Daylight Time; ACDT
+10:00 Australian Eastern Standard Time; AEST
+11:00 Australian Eastern Daylight Time; AEDT
-03:00 Brasilia Standard Time; BRT; Brasilia Summer Time; BRST
+06:00 Bangladesh Standard Time; BDT; Bangladesh Summer Time; BDST
+02:00 Central Africa Time; CAT; Central African Summer Time; CAST
+03:00 East Africa Time; EAT; Eastern African Summer Time; EAST
+13:00 Apia Standard Time; WSST; Apia Daylight Time; WSDT
+04:00 Armenia Standard Time; AMT; Armenia Summer Time; AMST
+12:00 New Zealand Standard Time; NZST
+13:00 New Zealand Daylight Time; NZDT
+05:00 Pakistan Standard Time; PKT; Pakistan Summer Time; PKST
+11:00 Solomon Islands Time; SBT; Solomon Is. Summer Time; SBST
+03:00 Arabian Standard Time; Arabian Daylight Time
+04:00 Azerbaijan Standard Time; AZT; Azerbaijan Summer Time; AZST
+03:00 East Timor Time
+09:00 TLT; Timor-Leste Summer Time; TLST
+07:00 Hovd Standard Time; HOVT; Hovd Summer Time; HOVST
+06:00 Omsk Standard Time; OMST; Omsk Summer Time; OMSST
+05:00 West Kazakhstan Time; ORAT; Oral Summer Time; ORAST; AQTT; Aqtau Summer Time; AQTST
+09:00 Yakutsk Standard Time; YAKT; Yakutsk Summer Time; YAKST
+04:00 Gulf Standard Time; GST; Gulf Daylight Time; GDT
+04:30 Afghanistan Time; AFT; Afghanistan Summer Time; AFST
+09:00 Korean Standard Time; KST; Korean Daylight Time; KDT
+03:00 East Kazakhstan Time
+05:00 ALMT; Alma-Ata Summer Time; ALMST
+12:00 Anadyr Standard Time; ANAT; Anadyr Summer Time; ANAST
+05:00 Aqtobe Summer Time; GMT+05:00; Atyrau Daylight Time
+08:00 Brunei Darussalam Time; BNT; Brunei Summer Time; BNST; Philippine Standard Time; Philippine Summer Time
+07:00 Indochina Time; ICT; Indochina Summer Time; ICST
+08:00 Taipei Standard Time; Taipei Daylight Time
+03:30 Iran Standard Time; IRST; Iran Daylight Time; IRDT
+04:00 Seychelles Time; SCT; Seychelles Summer Time; SCST
+10:00 Chuuk Time; CHUT; Chuuk Summer Time; CHUST
+00:00 Ghana Summer Time; GHST
+01:00 West Africa Standard Time; WAT; West Africa Summer Time; WAST
-10:00 HAST
-09:00 HADT
-05:00 Peru Standard Time; PET; Peru Summer Time; PEST
+06:00 Kyrgyzstan Time; KGT; Kirgizstan Summer Time; KGST
+05:30 India Standard Time; India Daylight Time
+08:00 Irkutsk Standard Time; IRKT; Irkutsk Summer Time; IRKST
+07:00 Western Indonesia Time; WIB; West Indonesia Summer Time; WIST
+08:00 Malaysia Time; MYT; Malaysia Summer Time; MYST
+11:00 Magadan Standard Time; MAGT; Magadan Summer Time; MAGST
+06:30 Myanmar Time; MMT; Myanmar Summer Time; MMST
+04:00 Georgia Standard Time; GET; Georgia Summer Time; GEST
+06:00 Bhutan Time; BTT; Bhutan Summer Time; BTST
+03:00 Moscow Standard Time; MSK; Moscow Summer Time; MSD
+06:30 Cocos Islands Time; CCT; Cocos Islands Summer Time; CCST
+12:00 Fiji Standard Time; FJT; Fiji Summer Time; FJST
+10:00 Chamorro Standard Time; ChST; Chamorro Daylight Time; ChDT
-11:00 Niue Time; NUT; Niue Summer Time; NUST
+12:00 Wake Island Time; WAKT; Wake Summer Time; WAKST
-08:00 Pitcairn Time
-09:00 Gambier Time
+02:00 South Africa Standard Time; SAST; South Africa Summer Time
-03:00 Argentina Standard Time; ART; Argentina Summer Time; ARST
+05:00 Turkmenistan Standard Time; TMT; Turkmenistan Summer Time; TMST; Tajikistan Time; TJT
+05:00 Tajikistan Summer Time; TJST
+03:00 Eastern Indonesia Time
+09:00 WIT
+03:00 East Indonesia Summer Time
+09:00 EIST
+05:45 Nepal Time; NPT; Nepal Summer Time; NPST
+08:00 Central Indonesia Time
+09:00 WITA
+08:00 Central Indonesia Summer Time; CIST
+05:00 QOST; Kostanay Summer Time; QOSST
+11:00 Sakhalin Standard Time; SAKT; Sakhalin Summer Time; SAKST
+05:00 Uzbekistan Standard Time; UZT; Uzbekistan Summer Time; UZST
+10:00 Vladivostok Standard Time; VLAT; Vladivostok Summer Time; VLAST
+01:00 Irish Standard Time; British Summer Time; BST
+00:00 Western European Standard Time; WET
+01:00 Western European Summer Time; WEST
+04:00 Samara Standard Time; SAMT; Samara Summer Time; SAMST
+06:00 Indian Ocean Time; IOT; Indian Ocean Territory Summer Time; IOST
+11:00 Vanuatu Standard Time; VUT; Vanuatu Summer Time; VUST
+12:00 Nauru Time; NRT; Nauru Summer Time; NRST
+09:00 Palau Time; PWT; Palau Summer Time; PWST
-05:00 Colombia Standard Time; COT; Colombia Summer Time; COST
-04:00 Amazon Standard Time; Amazon Summer Time
-07:00 Yukon Time
-04:00 Guyana Time; GYT; Guyana Summer Time; GYST
-05:00 Cuba Standard Time
-04:00 Cuba Daylight Time; Bolivia Time; BOT; Bolivia Summer Time; BOST
+08:00 Hong Kong Standard Time; HKT; Hong Kong Summer Time; HKST
-05:00 Petropavlovsk-Kamchatski Standard Time; PETT; Petropavlovsk-Kamchatski Summer Time; PETST
+05:00 QYZT; Qyzylorda Summer Time; QYZST
+08:00 Singapore Standard Time; SGT; Singapore Summer Time; SGST
+04:00 Réunion Time; RET; Reunion Summer Time; REST
+03:00 Easter Island Standard Time; Easter Island Summer Time
-05:00 EASST
+11:00 Kosrae Time; KOST; Kosrae Summer Time; KOSST
+12:00 Marshall Islands Time; MHT; Marshall Islands Summer Time; MHST
-11:00 Samoa Standard Time; SST; Samoa Daylight Time; SDT
+11:00 New Caledonia Standard Time; NCT; New Caledonia Summer Time; NCST; Ponape Time; PONT
+11:00 Pohnpei Summer Time; PONST
-10:00 Tahiti Time; TAHT; Tahiti Summer Time; TAHST
+12:00 Gilbert Islands Time; GILT; Gilbert Is. Summer Time; GILST; Wallis & Futuna Time; WFT
+12:00 Wallis & Futuna Summer Time; WFST
+01:00 Western African Time
-04:00 Venezuela Time; VET; Venezuela Summer Time; VEST
-03:00 French Guiana Time; GFT; French Guiana Summer Time; GFST
+01:00 West Greenland Standard Time
-02:00 WGT
+01:00 West Greenland Summer Time
-01:00 WGST
-02:00 Fernando de Noronha Standard Time; FNT; Fernando de Noronha Summer Time; FNST
+08:00 Ulaanbaatar Standard Time; CHOT; Ulaanbaatar Summer Time; CHOST
-01:00 Azores Standard Time; AZOT
+00:00 Azores Summer Time; AZOST
+08:45 Australian Central Western Standard Time; ACWST; Australian Central Western Daylight Time; ACWDT
+08:00 Australian Western Standard Time; AWST; Australian Western Daylight Time; AWDT
+05:00 Maldives Time; MVT; Maldives Summer Time; MVST
+12:45 Chatham Standard Time; CHAST
+13:45 Chatham Daylight Time; CHADT
+13:00 Tokelau Time; TKT; Tokelau Summer Time; TKST
-09:00 GAMT; Gambier Summer Time; GAMST
+11:00 Norfolk Island Standard Time; NFT
+12:00 Norfolk Island Daylight Time; NFST
-03:00 Paraguay Standard Time; PYT; Paraguay Summer Time; PYST
-05:00 Acre Standard Time; ACT; Acre Summer Time
-07:00 Mexican Pacific Standard Time; Mexican Pacific Daylight Time
-03:00 St. Pierre & Miquelon Standard Time; PMST
-02:00 St. Pierre & Miquelon Daylight Time; PMDT
-04:00 Chile Standard Time; CLT
-03:00 Chile Summer Time; CLST
+08:00 Casey Time
+07:00 Davis Time; DAVT; Davis Summer Time; DAVST
+03:00 Syowa Time; SYOT; Syowa Summer Time; SYOST
+07:00 Krasnoyarsk Standard Time; KRAT; Krasnoyarsk Summer Time; KRAST; Novosibirsk Standard Time; NOVT
+07:00 Novosibirsk Summer Time; NOVST
+08:00 ULAT; ULAST
-03:00 Falkland Islands Standard Time; FKT; Falkland Islands Summer Time; FKST
+03:00 Volgograd Standard Time; Volgograd Summer Time
+07:00 Christmas Island Time; CXT; Christmas Island Summer Time; CXST
+05:00 French Southern & Antarctic Time; TFT; French Southern & Antarctic Lands Summer Time; TFST
+04:00 Mauritius Standard Time; MUT; Mauritius Summer Time; MUST
+12:00 Tuvalu Time; TVT; Tuvalu Summer Time; TVST
-08:00 Pitcairn Daylight Time
-05:00 Ecuador Time; ECT; Ecuador Summer Time; ECST
+05:00 Mawson Time; MAWT; Mawson Summer Time; MAWST; Vostok Time; VOST; Vostok Summer Time; VOSST
+13:00 Phoenix Islands Time; PHOT; Phoenix Is. Summer Time; PHOST
-06:00 Galapagos Time; GALT; Galapagos Summer Time; GALST
-09:30 Marquesas Time; MART; Marquesas Summer Time; MARST
-10:00 Cook Islands Standard Time; CKT; Cook Islands Half Summer Time; CKHST
+13:00 Tonga Standard Time; TOT; Tonga Summer Time; TOST
-03:00 Uruguay Standard Time; UYT; Uruguay Summer Time; UYST; Suriname Time; SRT; Suriname Summer Time; SRST
-03:00 Rothera Time; ROTT; Rothera Summer Time; ROTST
+05:00 Yekaterinburg Standard Time; YEKT; Yekaterinburg Summer Time; YEKST
+14:00 Line Islands Time; LINT; Line Is. Summer Time; LINST
-01:00 Cape Verde Standard Time; CVT; Cape Verde Summer Time; CVST
+10:30 Lord Howe Standard Time; LHST
+11:00 Lord Howe Daylight Time; LHDT
-08:00 Northwest Mexico Standard Time
-07:00 Northwest Mexico Daylight Time
+03:00 East Greenland Standard Time
-02:00 EGT
+03:00 East Greenland Summer Time
-01:00 EGST
+10:00 Papua New Guinea Time; PGT; Papua New Guinea Summer Time; PGST
-02:00 South Georgia Time; South Georgia Daylight Time
+10:00 Dumont-d’Urville Time; DDUT; Dumont-d'Urville Summer Time; DDUST
+06:00 Xinjiang Standard Time; XJT; Xinjiang Daylight Time; XJDT
+01:00 Central European Time
+03:00 Turkey Time; TRT; Turkey Summer Time; TRST
+07:00 Tomsk Standard Time; GMT+07:00; Tomsk Daylight Time
-10:00 Hawaii Standard Time
+04:00 Saratov Standard Time; GMT+04:00
-03:00 Argentine Time; Argentine Summer Time
+11:00 Bougainville Standard Time; Bougainville Daylight Time
+07:00 Barnaul Standard Time; Barnaul Daylight Time
+01:00 Middle Europe Time; MET
+02:00 Middle Europe Summer Time; MEST
+01:00 Western European Time
+03:00 Eastern European Time
-03:00 Chile Time; Punta Arenas Standard Time; GMT-03:00; Coyhaique Standard Time; Coyhaique Daylight Time
+03:00 Moscow Daylight Time
-04:00 Astrakhan Standard Time
+04:00 Ulyanovsk Standard Time
+11:00 Srednekolymsk Time; SRET; Srednekolymsk Daylight Time; SREDT
"""


def parse_zone_name(text: str, position: int) -> tuple[int, int] | None:
    """Return the offset of the zone whose name starts at `position`, in milliseconds, and the end of the name.

    Return None if there is no name. Upper and lower case are the same.
    """
    found = _names_by_initial().get(text[position : position + 1].upper())
    if found is None:
        return None
    pattern, offsets = found
    name = pattern.match(text, position)
    return None if name is None or name.lastindex is None else (offsets[name.lastindex - 1], name.end())


def zone_names() -> dict[str, int]:
    """Return the offsets of all names in milliseconds, in Java's order."""
    offsets = {}
    for line in _ZONES.strip().splitlines():
        offset, _, names = line.partition(" ")
        minutes = int(offset[1:3]) * 60 + int(offset[4:])
        offsets.update(dict.fromkeys(names.split("; "), minutes * (-60_000 if offset[0] == "-" else 60_000)))
    return offsets


@lru_cache(maxsize=1)
def _names_by_initial() -> dict[str, tuple[re.Pattern[str], list[int]]]:
    """Return a regular expression for the names with the same first letter, and the offsets of its groups."""
    names: dict[str, list[tuple[str, int]]] = {}
    for name, offset in zone_names().items():
        names.setdefault(name[0], []).append((name, offset))
    return {
        initial: (_any_of([name for name, _ in group]), [offset for _, offset in group])
        for initial, group in names.items()
    }


def _any_of(names: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"({re.escape(name)})" for name in names), re.IGNORECASE)
